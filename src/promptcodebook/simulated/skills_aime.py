"""Hidden skills of the aime world: topics of competition problems, and general ones.

Written apart from the seed instincts of any task. Docs: docs/simulated.md.
"""

from __future__ import annotations

from promptcodebook.simulated.skill import Skill

__all__ = ["AIME_SKILLS"]

_TOPICS = (
    Skill(
        "modular",
        ("modular arithmetic", "modulo", "residue", "remainder", "congruence"),
        ("remainder", "divisible", "multiple of", "divide", "modulo"),
        (
            "For divisibility and remainders, work modulo small numbers.",
            "Reduce divisibility questions to residues by modular arithmetic.",
        ),
    ),
    Skill(
        "factoring",
        ("prime factor", "factorization", "divisor count", "factor completely"),
        ("divisor", "prime", "relative prime", "factor"),
        (
            "Write integers as a prime factorization and reason on the exponents.",
            "Break numbers into prime factors before counting divisors.",
        ),
    ),
    Skill(
        "counting",
        ("count case", "without overcounting", "combinatorial", "binomial", "count arrangement"),
        ("number of ways", "how many", "arrangement", "subset", "number of"),
        (
            "Count arrangements in a fixed order without overcounting.",
            "Set up a combinatorial count and check it on a small instance.",
        ),
    ),
    Skill(
        "casework",
        ("case by case", "disjoint case", "casework", "each case"),
        ("each", "exactly", "every", "distinct"),
        (
            "Split into disjoint cases and sum over each case.",
            "Do casework and make sure that no case is missing.",
        ),
    ),
    Skill(
        "probability",
        ("favorable total", "conditional probability", "sample space", "equally likely"),
        ("probability", "random", "expected"),
        (
            "For a probability, define the sample space and divide favorable by total outcomes.",
            "State which outcomes are equally likely before dividing.",
        ),
    ),
    Skill(
        "geometry_diagram",
        ("draw diagram", "sketch figure", "label length", "auxiliary line"),
        ("triangle", "circle", "angle", "square", "rectangle", "hexagon", "polygon"),
        (
            "Sketch the figure, label lengths and add an auxiliary line where useful.",
            "Draw a diagram of the figure first.",
        ),
    ),
    Skill(
        "coordinates",
        ("coordinate", "place origin", "vector", "axes"),
        ("point", "line segment", "plane", "midpoint", "parabola", "ellipse"),
        (
            "Place the figure in coordinates with a convenient origin.",
            "Use coordinates or a vector computation when synthetic ideas stall.",
        ),
    ),
    Skill(
        "similar_power",
        ("similar triangle", "power of a point", "law of cosines", "cyclic"),
        ("tangent", "chord", "circumcircle", "inscribed", "perpendicular", "radius"),
        (
            "Look for similar triangles, cyclic points and power of a point.",
            "Try the law of cosines and similar triangles on tangent figures.",
        ),
    ),
    Skill(
        "solid",
        ("cross section", "three dimension", "solid net"),
        ("sphere", "tetrahedron", "cube", "volume", "cylinder", "plane"),
        (
            "Reduce solids to a cross section through their symmetry.",
            "Treat three dimensional bodies by a cross section.",
        ),
    ),
    Skill(
        "polynomials",
        ("vieta", "root coefficient", "symmetric sum", "substitute root"),
        ("polynomial", "root", "coefficient", "quadratic"),
        (
            "Relate roots and coefficients by Vieta before solving.",
            "Use symmetric sums of the roots in place of the roots.",
        ),
    ),
    Skill(
        "logarithms",
        ("log rule", "change of base", "exponent form"),
        ("log", "exponent", "power"),
        (
            "Rewrite logarithms by a change of base to exponent form.",
            "Apply each log rule to reach one common base.",
        ),
    ),
    Skill(
        "complex",
        ("polar form", "roots of unity", "modulus argument", "conjugate"),
        ("complex", "real part", "imaginary", "z"),
        (
            "Put complex numbers in polar form and use the conjugate.",
            "Think of modulus and argument, or roots of unity, for complex numbers.",
        ),
    ),
    Skill(
        "trigonometry",
        ("trig identity", "double angle", "sum to product"),
        ("sin", "cos", "tan", "degree"),
        (
            "Simplify by a trig identity such as the double angle.",
            "Turn sums of sines into products, sum to product, before evaluating.",
        ),
    ),
    Skill(
        "sequences",
        ("recurrence", "telescoping", "find pattern", "closed form"),
        ("sequence", "term", "arithmetic progression", "geometric", "recursive", "sum of"),
        (
            "Write out first terms, find the pattern and prove the recurrence.",
            "Look for a telescoping sum or a closed form.",
        ),
    ),
    Skill(
        "extremes",
        ("attain bound", "extreme case", "inequality bound", "minimum attained"),
        ("maximum", "minimum", "largest", "smallest", "least", "greatest", "minimum possible"),
        (
            "For an extreme value, prove a bound and show where it is attained.",
            "Test that the bound of the inequality can be attained.",
        ),
    ),
    Skill(
        "floor_digits",
        ("digit place value", "base representation", "floor interval"),
        ("digit", "floor", "decimal", "base", "lfloor"),
        (
            "Write numbers by digit place value and treat the floor on each interval.",
            "Use the base representation to reason about digits.",
        ),
    ),
    Skill(
        "rates",
        ("define variable", "set up equation", "unit rate"),
        ("hour", "minute", "rate", "speed", "mile", "kilometer", "meter"),
        (
            "Define a variable for each unknown and set up equations from the rates.",
            "Name units, define variables and write one equation per fact.",
        ),
    ),
    Skill(
        "games_logic",
        ("winning position", "work backward", "parity argument", "invariant"),
        ("game", "player", "turn", "token", "strategy", "color", "move"),
        (
            "Work backward through winning positions or find an invariant.",
            "Look for a parity argument or invariant in moves and colourings.",
        ),
    ),
)

_GENERAL = (
    Skill(
        "boxed",
        ("boxed", "final box", "box answer"),
        ("find",),
        (
            "Put the final integer in \\boxed{}.",
            "End with the boxed integer alone.",
        ),
        general=True,
    ),
    Skill(
        "verify_arithmetic",
        ("verify arithmetic", "recompute", "double check computation", "second way"),
        ("arithmetic",),
        (
            "Verify the arithmetic by computing it a second way.",
            "Recompute each numeric step before concluding.",
        ),
        general=True,
    ),
    Skill(
        "step_by_step",
        ("step by step", "show step", "one step at a time", "work through derivation"),
        ("derivation",),
        (
            "Work through the derivation step by step.",
            "Take one step at a time and keep exact values.",
        ),
        general=True,
    ),
    Skill(
        "asked_quantity",
        ("what is asked", "requested quantity", "quantity asked", "asked form"),
        ("m n", "find", "can be written"),
        (
            "Convert the result into the quantity that is asked, such as m+n.",
            "Reread what is asked and give that requested quantity.",
        ),
        general=True,
    ),
    Skill(
        "range_check",
        ("000 999", "integer from 0", "between 0 and 999", "range 999"),
        ("range",),
        (
            "Check that the answer is an integer between 0 and 999.",
            "Reject any result outside the range 0 to 999.",
        ),
        general=True,
    ),
)

AIME_SKILLS: tuple[Skill, ...] = (*_TOPICS, *_GENERAL)
