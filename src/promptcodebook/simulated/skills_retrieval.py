"""Hidden skills of the worlds with retrieval, hotpotqa and hover: search, notes, and evidence.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill

__all__ = ["EVIDENCE_SKILLS", "NOTE_SKILLS", "SEARCH_SKILLS"]

SEARCH_SKILLS = (
    Skill(
        "name_page",
        ("query name page", "search page title", "title of missing", "query exact title"),
        ("still missing", "not retrieved", "not found", "missing title", "missing page", "missed"),
        (
            "Let the search name the page by its exact title when it is still missing.",
            "In a query, name the title of the missing page and little else.",
        ),
    ),
    Skill(
        "bridge",
        ("intermediate entity", "bridge entity", "unnamed person thing", "resolve entity"),
        ("who", "whose", "that", "the same"),
        (
            "Resolve the intermediate entity first, then look for its own page.",
            "Find the bridge entity that links the two facts before searching on.",
        ),
    ),
    Skill(
        "second_entity",
        ("other entity compared", "second entity", "each side comparison", "both entities"),
        ("both", "older", "first", "more", "or", "same"),
        (
            "Search for the second entity of a comparison on its own.",
            "Cover both entities that are compared, one after the other.",
        ),
    ),
    Skill(
        "screen",
        ("film title", "director cast", "movie series title", "cast film"),
        (
            "film",
            "movie",
            "actor",
            "actress",
            "directed",
            "television",
            "series",
            "starred",
            "show",
        ),
        (
            "For screen works look up the film title together with director or cast.",
            "Tie actors to the film title in which they appear.",
        ),
    ),
    Skill(
        "music",
        ("album artist", "song album", "band member", "record artist"),
        ("song", "album", "band", "singer", "music", "musician", "single", "composer"),
        (
            "Connect song and album with the artist who recorded them.",
            "Follow a band member to the band and back.",
        ),
    ),
    Skill(
        "sport",
        ("club season", "league season", "team season", "championship season"),
        ("football", "season", "league", "player", "club", "team", "coach", "champion", "cup"),
        (
            "For sport state the club, the league and the season.",
            "Add the team season to a player's name.",
        ),
    ),
    Skill(
        "places",
        ("administrative region", "county state", "which country contains", "place and region"),
        ("city", "located", "country", "county", "river", "airport", "island", "town", "state"),
        (
            "Give a place with its administrative region.",
            "Follow a place upward: county, state, then country.",
        ),
    ),
    Skill(
        "works",
        ("author book", "novel author", "publisher work", "edition of book"),
        ("novel", "book", "author", "written", "writer", "magazine", "published", "poet"),
        (
            "Look up the author of a book before facts about the author.",
            "Name the novel and its author together.",
        ),
    ),
    Skill(
        "history",
        ("office term", "reign war", "term in office", "historical period"),
        ("war", "president", "king", "queen", "elected", "battle", "party", "minister", "army"),
        (
            "Tie people of history to the term in office or the war concerned.",
            "Use the historical period to tell namesakes apart.",
        ),
    ),
    Skill(
        "companies",
        ("parent company", "founder company", "company brand", "subsidiary"),
        ("company", "founded", "brand", "university", "organization", "school", "developed"),
        (
            "Trace a brand to the parent company and its founder.",
            "Look for the parent company or the subsidiary by name.",
        ),
    ),
)

NOTE_SKILLS = (
    Skill(
        "keep_names",
        ("keep proper name", "every proper name", "note name person", "names in summary"),
        ("who", "name", "person", "which", "what"),
        (
            "Keep every proper name in the notes as the source spells it.",
            "Note the name of each person and thing that the passages tie to the matter.",
        ),
    ),
    Skill(
        "keep_dates",
        ("keep date", "note year", "year and date", "date in summary"),
        ("year", "born", "when", "date", "older", "first", "century", "died"),
        (
            "Keep each date and year with the fact it belongs to.",
            "Note the year beside every event in the summary.",
        ),
    ),
    Skill(
        "keep_numbers",
        ("keep figure", "note figure", "number and unit", "quantities"),
        ("how many", "number", "population", "million", "people", "times"),
        (
            "Keep figures with their units in the notes.",
            "Carry quantities over exactly.",
        ),
    ),
    Skill(
        "keep_relations",
        ("relation between", "how connected", "link between page", "relate fact"),
        ("of", "by", "with", "between", "member"),
        (
            "Write down the relation between the pages, not only their subjects.",
            "State how the people and things are connected.",
        ),
    ),
    Skill(
        "page_titles",
        ("cite page title", "page title note", "source title", "title each fact"),
        ("summary", "summaries", "note", "notes"),
        (
            "Put the source title beside each fact that is noted.",
            "Head each fact in the notes with its page title.",
        ),
    ),
)

EVIDENCE_SKILLS = (
    Skill(
        "evidence_only",
        ("only evidence", "rely on passage", "stated in passage", "from the evidence"),
        ("evidence", "unsupported"),
        (
            "Rely on the passages and add nothing from memory.",
            "Use only the evidence that is shown.",
        ),
        general=True,
    ),
    Skill(
        "each_part",
        ("each part", "piece by piece", "break down", "sub question"),
        ("parts",),
        (
            "Break down what is asked and settle each part in turn.",
            "Go through the statement piece by piece.",
        ),
        general=True,
    ),
    Skill(
        "namesakes",
        ("namesake", "disambiguate", "same name", "right entity"),
        ("namesake",),
        (
            "Watch for namesakes and make sure that it is the right entity.",
            "Disambiguate people and works of the same name.",
        ),
        general=True,
    ),
)
