"""Hidden skills of the ifbench world: one for each family of constraints, and which ids it serves.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from collections.abc import Mapping

from promptcodebook.simulated.skill import Skill

__all__ = ["FAMILIES", "IFBENCH_SKILLS"]

_ROWS: tuple[tuple[str, str, str, str, str], ...] = (
    ("keywords",
     "required word|demanded keyword|each keyword|keyword as often",
     "keyword|word include",
     "Use each keyword as often as demanded, spelled as given.",
     "Work every required word into the text and tick it off."),
    ("forbidden",
     "forbidden word|banned word|word not allowed",
     "forbidden|not include|do not use",
     "Scan for a forbidden word and find another way to say it.",
     "Let no banned word slip in."),
    ("letters",
     "count letter|letter often|rich letter",
     "letter",
     "Count letter by letter where a letter must be frequent or rare.",
     "Choose words rich in the letter that is wanted."),
    ("language",
     "language demanded|whole language|foreign language|asked language",
     "language|entire response in",
     "Write all of it in the language demanded.",
     "Stay in the asked language, quotations included."),
    ("sentences",
     "count sentence|number of sentence|sentence one by one",
     "sentences|sentence",
     "Count each sentence until the number of sentences fits.",
     "Plan the sentences one by one, their number first."),
    ("words",
     "count word|word limit|word total|length in words",
     "words|at least word|less than word",
     "Count words while writing and respect the word limit.",
     "Hold the length in words, with a little room."),
    ("paragraphs",
     "separate paragraph|paragraph mark|paragraph divider|count paragraph",
     "paragraph|paragraphs",
     "Separate paragraphs by exactly the divider named.",
     "Count each paragraph and open it with the word given."),
    ("placeholders",
     "square bracket|placeholder bracket|bracketed gap",
     "placeholder|square bracket",
     "Put each placeholder in square brackets.",
     "Leave bracketed gaps, one more than needed rather than one less."),
    ("postscript",
     "postscript|afterword marker",
     "postscript|p s",
     "Close with a postscript that opens with its marker.",
     "Add the postscript as the last line."),
    ("bullets",
     "bullet line|bullet list|list marker|bullet exactly",
     "bullet|bullets|list",
     "Start each bullet line with the list marker and count them.",
     "Give a bullet list with exactly as many points as wanted."),
    ("choice",
     "given option verbatim|one option|option exactly|pick option",
     "my answer is|option|one of the following",
     "Pick one option and copy it exactly.",
     "Reply with a given option verbatim and no more."),
    ("highlights",
     "highlight|emphasis star|asterisk around",
     "highlight|highlighted",
     "Highlight parts with an asterisk around each.",
     "Count each highlight as it is set."),
    ("sections",
     "section header|label of section|named section|template label",
     "section|sections",
     "Head each named section by its label and number.",
     "Copy every template label or section header as printed."),
    ("json",
     "valid json|json object|raw json|parse json",
     "json",
     "Return one raw JSON object.",
     "Make sure that it will parse as JSON."),
    ("title",
     "title bracket|angle bracket|capitalise title|title line",
     "title|angular bracket",
     "Set the title line in double angle brackets.",
     "Wrap the title in an angle bracket pair on each side."),
    ("two_responses",
     "two responses|both versions|six asterisk",
     "two different|six asterisk|two responses",
     "Give both versions and divide them by six asterisks.",
     "Write two responses with the six asterisk divider alone between them."),
    ("repeat",
     "repeat request|copy request|repeat verbatim|echo text",
     "repeat|copy",
     "Repeat the request word for word where that is wanted, before all else.",
     "Copy the request without touching it, apart from what must change."),
    ("ending",
     "end phrase|closing phrase|last phrase exact",
     "end|finish|phrase|ends",
     "Let the closing phrase be the very last words.",
     "Finish on the end phrase exactly."),
    ("quotation",
     "double quotation|wrap quotation|quotation mark",
     "quotation|quotes|wrap",
     "Wrap it all in double quotation marks.",
     "Open and close with a quotation mark."),
    ("case",
     "capital letter|upper case|lower case|lowercase",
     "capital|lowercase|capital letter|uppercase",
     "Mind whether capital letters are demanded or barred.",
     "Keep to lower case or upper case throughout."),
    ("commas",
     "no comma|without comma|comma free",
     "comma|commas",
     "Write comma free: short clauses joined by and.",
     "Check that there is no comma at all."),
    ("word_shapes",
     "word shape|first letter of word|each word letter|spelling pattern",
     "each word|consonant|vowel|alphabet|palindrome|syllable|verb",
     "Check each word for the letter pattern that is prescribed.",
     "Let the spelling pattern choose the words."),
    ("symbols",
     "symbol|emoji|nested bracket|punctuation kind",
     "emoji|punctuation|parentheses|nested",
     "Place every symbol demanded, emoji and nested brackets alike.",
     "Go through each punctuation kind that is asked for."),
    ("tallies",
     "tally|keep a count of|count figures names",
     "numbers|pronoun|conjunction|person names|unique",
     "Keep a tally of the things that must occur so often.",
     "Tally names, figures and small words at the end."),
    ("ratios",
     "ratio|share of|balance of|proportion",
     "ratio|percent|overlap|balance|stop words",
     "Compute the ratio that is wanted and adjust.",
     "Mind the proportion between kinds of sentences or words."),
    ("layout",
     "line break|indent|white space|one per line",
     "newline|indent|whitespace|white space|line",
     "Follow the layout: line breaks and indents as described.",
     "Set one per line where that is asked, with the indent growing."),
    ("tables",
     "csv|fixed order|exact rows|row by row",
     "csv|rows|column|order|list the",
     "Write tables row by row with exact rows and columns.",
     "Give lists in the fixed order with the separator named."),
    ("positions",
     "position of word|nth word|nth sentence|exact position",
     "position|th sentence|word in",
     "Place the word at the exact position, counting from one.",
     "Count to the nth sentence or nth word and set it there."),
)  # fmt: skip

_GENERAL = (
    Skill(
        "reread_constraints",
        ("reread demand", "list demand", "every demand", "go over demands"),
        ("demands",),
        (
            "Before writing list every demand that the query makes.",
            "Go over the demands again when the text stands.",
        ),
        general=True,
    ),
    Skill(
        "bare_text",
        ("no preamble", "text alone", "without remark"),
        ("preamble",),
        ("Give the text alone with no preamble.", "Output the text without remark."),
        general=True,
    ),
)

IFBENCH_SKILLS: tuple[Skill, ...] = (
    *(
        Skill(name, tuple(cues.split("|")), tuple(topics.split("|")), (first, second))
        for name, cues, topics, first, second in _ROWS
    ),
    *_GENERAL,
)

FAMILIES: Mapping[str, str] = {
    one: family
    for family, ids in {
        "keywords": "keywords:existence keywords:frequency count:keywords_multiple",
        "forbidden": "keywords:forbidden_words",
        "letters": "keywords:letter_frequency",
        "language": "language:response_language",
        "sentences": "length_constraints:number_sentences sentence:alliteration_increment "
        "sentence:increment ratio:sentence_words",
        "words": "length_constraints:number_words count:word_count_range count:unique_word_count",
        "paragraphs": "length_constraints:number_paragraphs "
        "length_constraints:nth_paragraph_first_word words:paragraph_last_first",
        "placeholders": "detectable_content:number_placeholders",
        "postscript": "detectable_content:postscript",
        "bullets": "detectable_format:number_bullet_lists format:sub-bullets "
        "format:no_bullets_bullets format:list",
        "choice": "detectable_format:constrained_response format:options",
        "highlights": "detectable_format:number_highlighted_sections",
        "sections": "detectable_format:multiple_sections format:output_template format:thesis",
        "json": "detectable_format:json_format",
        "title": "detectable_format:title format:title_case",
        "two_responses": "combination:two_responses",
        "repeat": "combination:repeat_prompt repeat:repeat_change repeat:repeat_simple "
        "repeat:repeat_span",
        "ending": "startend:end_checker",
        "quotation": "startend:quotation format:quotes format:quote_unquote",
        "case": "change_case:capital_word_frequency change_case:english_capital "
        "change_case:english_lowercase",
        "commas": "punctuation:no_comma",
        "word_shapes": "words:alphabet words:vowel words:consonants words:palindrome "
        "words:prime_lengths words:start_verb words:repeats words:odd_even_syllables "
        "words:last_first words:no_consecutive custom:word_reverse custom:character_reverse",
        "symbols": "count:punctuation format:emoji format:parentheses",
        "tallies": "count:conjunctions count:person_names count:numbers count:words_japanese "
        "count:pronouns",
        "ratios": "ratio:stop_words ratio:sentence_type ratio:sentence_balance ratio:overlap",
        "layout": "format:newline format:line_indent format:no_whitespace custom:reverse_newline",
        "tables": "custom:multiples custom:mcq_count_length custom:sentence_alphabet "
        "custom:european_capitals_sort custom:csv_city custom:csv_special_character "
        "custom:csv_quotes custom:date_format_list",
        "positions": "words:keywords_specific_position words:words_position sentence:keyword",
    }.items()
    for one in ids.split()
}
"""The 25 IFEval ids and the 58 of IFBench, each with the skill of its family."""
