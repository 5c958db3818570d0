CREATE TABLE log (
    seq INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    who TEXT NOT NULL,
    action TEXT NOT NULL,
    ref TEXT NOT NULL,
    before TEXT NOT NULL,
    after TEXT NOT NULL,
    why TEXT NOT NULL,
    facts TEXT NOT NULL,
    previous TEXT NOT NULL,
    hash TEXT NOT NULL
);
CREATE INDEX log_by_ref ON log (ref, seq);
CREATE TABLE policies (id INTEGER PRIMARY KEY, version TEXT NOT NULL, policy BLOB NOT NULL);
CREATE UNIQUE INDEX policies_by_version ON policies (version);
