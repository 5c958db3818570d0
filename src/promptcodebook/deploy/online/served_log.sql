CREATE TABLE requests (number INTEGER PRIMARY KEY, id TEXT NOT NULL, value BLOB NOT NULL);
CREATE INDEX by_id ON requests (id);
CREATE TABLE spent (
    caller TEXT,
    day TEXT,
    calls INTEGER NOT NULL,
    tokens INTEGER NOT NULL,
    usd REAL NOT NULL,
    PRIMARY KEY (caller, day)
);
CREATE TABLE served (
    id TEXT PRIMARY KEY,
    time DOUBLE PRECISION NOT NULL,
    ref TEXT NOT NULL,
    version TEXT NOT NULL,
    caller TEXT NOT NULL,
    arm TEXT NOT NULL,
    status INTEGER NOT NULL,
    seconds DOUBLE PRECISION NOT NULL,
    tokens BIGINT,
    erased INTEGER NOT NULL,
    value BLOB NOT NULL
);
CREATE INDEX served_by_time ON served (ref, time);
CREATE TABLE feedback (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL,
    key TEXT NOT NULL,
    time DOUBLE PRECISION NOT NULL,
    reward DOUBLE PRECISION NOT NULL,
    said TEXT NOT NULL,
    UNIQUE (id, key)
);
