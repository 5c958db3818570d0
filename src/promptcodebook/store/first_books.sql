CREATE TABLE journal (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL,
    role TEXT NOT NULL,
    reply BLOB NOT NULL
);
CREATE UNIQUE INDEX journal_by_key ON journal (key);
-- cost NULL = a price was unknown; NULL + x stays NULL, as Usage.__add__ has it.
CREATE TABLE usage (
    role TEXT PRIMARY KEY,
    calls INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_prompt_tokens INTEGER NOT NULL,
    cost REAL,
    latency_s REAL NOT NULL
);
CREATE TABLE tally (name TEXT PRIMARY KEY, count INTEGER NOT NULL);
CREATE TABLE sessions (id INTEGER PRIMARY KEY, started TEXT NOT NULL, seconds REAL NOT NULL);
