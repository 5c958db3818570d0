"""Texts that are code in some language, wherever they get in as they are."""

NASTY = (
    'kind\nexecutor = { command = "touch PWNED" }\n#',
    "kind\r\nexecutor = 'agent.py:run'",
    'kind"\nlm = "simulated"\n#',
    "kind''' \"\"\" \\",
    "]]\n[executor]\ncommand = 'touch PWNED'",
    "{{ 7 * 7 }}{% raw %}{# x #}",
    "{kind} and {a lone brace",
    "=cmd|'/C calc'!A0",
    "$(touch PWNED); `touch PWNED` && 'x'",
    "<script>alert(1)</script>|<b>&amp;",
    "```\n# head\n[a](javascript:1) | *b*",
    "\x1b[2J\x07kind\x7f\x9b\u202ekind\u2028end",
    "#ff0000 = key",
)
