"""Hidden skills of the livebench_math world: the aime world's topics, calculus, and answer forms.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill
from promptcodebook.simulated.skills_aime import AIME_SKILLS

__all__ = ["LIVEBENCH_SKILLS"]

_TAKEN = (
    "modular", "counting", "casework", "probability", "geometry_diagram", "coordinates",
    "polynomials", "logarithms", "trigonometry", "sequences", "extremes", "rates",
    "verify_arithmetic", "step_by_step",
)  # fmt: skip

_OWN = (
    Skill(
        "letter_five_times",
        ("letter five times", "repeat letter", "duplicate letter", "five copies"),
        ("five times", "single string", "multiple choice", "fffff"),
        (
            "Write the chosen letter five times in one string.",
            "Repeat the letter as asked, five copies without blanks.",
        ),
    ),
    Skill(
        "options",
        ("test each option", "option by option", "eliminate option", "compare with options"),
        ("textbf", "best guess", "choice answer"),
        (
            "Compare the result with the options and eliminate those that cannot be.",
            "Test each option where solving is hard.",
        ),
    ),
    Skill(
        "three_digits",
        ("three digits", "leading zero", "pad with zero"),
        ("three digit", "000 999", "integer consisting"),
        (
            "Give the integer as three digits, with a leading zero where needed.",
            "Pad with zeros to three digits.",
        ),
    ),
    Skill(
        "proof_order",
        ("order of argument", "match expression", "follow the proof", "fill each gap"),
        ("missing", "formula", "identifier", "proof", "mask", "expressions"),
        (
            "Follow the proof line by line and match each expression to its gap.",
            "Fill each gap from what stands before and after it.",
        ),
    ),
    Skill(
        "comma_list",
        ("comma separated", "list of identifiers", "answer line", "identifiers in order"),
        ("comma separated", "sequence of identifier", "identifiers"),
        (
            "End with one answer line: the identifiers in order, comma separated.",
            "Give the list of identifiers on the last line.",
        ),
    ),
    Skill(
        "latex_box",
        ("latex box", "boxed latex", "simplified latex", "exact boxed"),
        ("latex", "boxed", "box"),
        (
            "Put the exact result as boxed LaTeX at the end.",
            "Box the simplified result in LaTeX.",
        ),
    ),
    Skill(
        "derivative",
        ("product rule", "chain rule", "quotient rule"),
        ("differentiate", "derivative"),
        (
            "Apply the chain rule and the product rule one after the other.",
            "Name the rule used: chain rule, quotient rule.",
        ),
    ),
    Skill(
        "integral",
        ("substitution", "by parts", "differentiate back", "antiderivative"),
        ("integral", "integrate"),
        (
            "Look for a substitution, then differentiate back.",
            "Try integration by parts and test the antiderivative.",
        ),
    ),
    Skill(
        "square_completion",
        ("complete square", "half the coefficient", "square plus constant"),
        ("complete the square", "quadratic"),
        (
            "Complete the square with half the coefficient of the linear term.",
            "Write it as a square plus a constant.",
        ),
    ),
    Skill(
        "matrices",
        ("determinant expansion", "eigen", "row reduction", "cofactor"),
        ("matrix", "determinant", "characteristic"),
        (
            "Expand by cofactors and watch the signs.",
            "Use row reduction, then the eigenvalue equation.",
        ),
    ),
    Skill(
        "statistics",
        ("sum of squares", "mean deviation", "sample formula", "root of product"),
        ("standard deviation", "variance", "geometric mean", "sample", "mean"),
        (
            "Use the sample formula with n minus one.",
            "For means write the sum of squares or the root of the product first.",
        ),
    ),
    Skill(
        "factor_forms",
        ("factor out", "common factor", "factor over"),
        ("factor", "gcd", "greatest common"),
        (
            "Take out the common factor before anything else.",
            "Factor out and multiply back.",
        ),
    ),
    Skill(
        "asked_form",
        ("form asked", "answer format", "format demanded", "requested form"),
        ("format",),
        (
            "Give the result in the form asked and nothing after it.",
            "Hold to the answer format that the question ends with.",
        ),
        general=True,
    ),
    Skill(
        "commit",
        ("commit to answer", "never leave open", "decide even if unsure"),
        ("unsure",),
        (
            "Commit to one answer even if doubt remains.",
            "Decide even if unsure.",
        ),
        general=True,
    ),
)

LIVEBENCH_SKILLS: tuple[Skill, ...] = (
    *(skill for skill in AIME_SKILLS if skill.name in _TAKEN),
    *_OWN,
)
