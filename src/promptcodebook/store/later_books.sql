CREATE TABLE IF NOT EXISTS lost (
    -- As `usage`, of attempts without a reply: the most they can have cost.
    role TEXT PRIMARY KEY,
    calls INTEGER NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    cached_prompt_tokens INTEGER NOT NULL,
    cost REAL,
    latency_s REAL NOT NULL
);
CREATE TABLE IF NOT EXISTS settled (
    -- The last attempt of each slot that is booked.
    slot INTEGER PRIMARY KEY,
    number INTEGER NOT NULL
);
