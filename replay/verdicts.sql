-- The verdicts of the fence (docs/rules.md), in DuckDB's SQL.
--
-- It reads four tables or views, and knows nothing of where they come from:
--
--   epochfence_records       topic VARCHAR, partition INTEGER, life BIGINT, topic_id VARCHAR,
--                            leader_epoch BIGINT, "offset" BIGINT,
--                            headers STRUCT(key VARCHAR, value BLOB)[]; in any order
--   epochfence_settings      a row for each topic: topic VARCHAR, header VARCHAR (whose
--                            values are stamps), barrier VARCHAR (null where there are
--                            none), encoding VARCHAR ('epochfence', 'int64be' or
--                            'decimal'), required VARCHAR[], unstamped VARCHAR,
--                            authority VARCHAR, max_jump BIGINT (null: any)
--   epochfence_grants        scope VARCHAR, epoch BIGINT, grant_id VARCHAR
--   epochfence_known_starts  topic, partition, topic_id, scope, epoch, grant_id,
--                            leader_epoch, start_offset; empty where none is known
--
-- life, topic_id and leader_epoch may be null: not known. It leaves the table
-- epochfence_verdicts: one row a record.
--
-- How it goes. What an epoch opens is an admitted record only, so verdicts depend on
-- verdicts. But between two openings only three things decide: the partition, the starts
-- of the known table that count, and the stamps. Records in a row that share them are a
-- *run*; runs that share them are of one *case*. The recursion steps from opening to
-- opening, for all partitions at once, and looks at cases, not at records.

-- 1. Which headers matter, each combination once.

SELECT error(format('epochfence: it is not said what topic {} is judged by', topic))
FROM (SELECT DISTINCT topic FROM epochfence_records)
ANTI JOIN epochfence_settings USING (topic);

CREATE OR REPLACE TEMP TABLE epochfence_combinations AS
SELECT row_number() OVER () AS stamps_id, *
FROM (
    SELECT DISTINCT s.header, s.barrier, s.encoding, s.authority,
        coalesce(list_filter(r.headers,
            lambda h: h.key = s.header OR h.key = s.barrier), []) AS judged
    FROM epochfence_records r JOIN epochfence_settings s USING (topic)
);

-- 2. The records in order of position. A record without leader epoch stands by its
-- offset alone: all before it have a lower one, all behind it a higher one.

CREATE OR REPLACE TEMP TABLE epochfence_ordered AS
SELECT
    topic, "partition", life, topic_id, leader_epoch, "offset", stamps_id,
    row_number() OVER in_order AS number,
    last_value(topic_id IGNORE NULLS) OVER in_order AS life_id
FROM (
    SELECT
        r.topic, r."partition", coalesce(r.life, 0) AS life, r.topic_id,
        r.leader_epoch, r."offset", c.stamps_id,
        coalesce(max(CASE WHEN r.leader_epoch IS NULL THEN r."offset" END) OVER (
            PARTITION BY r.topic, r."partition", coalesce(r.life, 0)
            ORDER BY r."offset"), -1) AS behind
    FROM epochfence_records r
    JOIN epochfence_settings s USING (topic)
    JOIN epochfence_combinations c
        ON c.header = s.header AND c.encoding = s.encoding
        AND c.authority = s.authority
        AND c.judged = coalesce(list_filter(r.headers,
            lambda h: h.key = s.header OR h.key = s.barrier), [])
)
WINDOW in_order AS (
    PARTITION BY topic, "partition"
    ORDER BY life, behind, leader_epoch NULLS FIRST, "offset"
    ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW
);

SELECT error('epochfence: a record lacks its topic, its partition or its offset, or one '
    'of them is negative')
FROM epochfence_ordered
WHERE topic IS NULL OR "partition" IS NULL OR "offset" IS NULL
    OR "partition" < 0 OR "offset" < 0 OR leader_epoch < 0;

SELECT error(format(
    'epochfence: {}[{}] has two records at offset {}, or their positions contradict '
    'each other: each record may be there once', topic, "partition", "offset"))
FROM (
    SELECT topic, "partition", "offset", leader_epoch,
        max("offset") OVER before AS highest,
        max(CASE WHEN leader_epoch IS NULL THEN "offset" END) OVER before AS bare,
        last_value(CASE WHEN leader_epoch IS NOT NULL
            THEN {'leader_epoch': leader_epoch, 'at': "offset"} END IGNORE NULLS)
            OVER before AS named
    FROM epochfence_ordered
    WINDOW before AS (
        PARTITION BY topic, "partition", life ORDER BY number
        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
)
WHERE (leader_epoch IS NULL AND highest >= "offset")
    OR (leader_epoch IS NOT NULL AND (
        bare >= "offset"
        OR named.leader_epoch > leader_epoch
        OR (named.leader_epoch = leader_epoch AND named.at >= "offset")));

SELECT error(format(
    'epochfence: {}[{}] has records of more than one topic id, and which came first '
    'cannot be told: give each life of the topic a number of its own in the column '
    'life, rising', topic, "partition"))
FROM epochfence_ordered GROUP BY topic, "partition", life
HAVING count(DISTINCT topic_id) > 1;

SELECT error(format(
    'epochfence: life {} of {}[{}] begins without a topic id of its own: a later life '
    'is known by that', life, topic, "partition"))
FROM (
    SELECT topic, "partition", life, arg_min(topic_id, number) AS first_id,
        min_by(coalesce(topic_id, ''), number) AS first_text,
        max(topic_id) AS life_id,
        min(life) OVER (PARTITION BY topic, "partition") AS first_life,
        count(*) OVER (PARTITION BY topic, "partition", max(topic_id)) AS lives
    FROM epochfence_ordered GROUP BY topic, "partition", life
)
WHERE life > first_life AND (first_text = '' OR lives > 1);

-- 3. The stamps, parsed.

CREATE OR REPLACE TEMP TABLE epochfence_stamps AS
WITH headers AS (
    SELECT c.stamps_id, i AS ordinal, c.encoding, c.authority,
        c.header AS scope_header,
        c.barrier IS NOT NULL AND c.judged[i].key = c.barrier AS is_barrier,
        c.judged[i].value AS content
    FROM epochfence_combinations c,
    LATERAL unnest(range(1, len(c.judged) + 1)) AS t(i)
), texts AS (
    -- The longest stamp has 237 bytes.
    SELECT *, CASE WHEN encoding <> 'int64be' AND octet_length(content) <= 237
        THEN TRY(decode(content)) END AS words
    FROM headers
), parsed AS (
    SELECT stamps_id, ordinal, authority, is_barrier,
        CASE
            WHEN encoding = 'int64be' THEN CASE
                WHEN octet_length(content) = 8 AND hex(content) < '8'
                THEN TRY_CAST('0x' || hex(content) AS BIGINT) END
            WHEN encoding = 'decimal' THEN CASE
                WHEN regexp_full_match(words, '0|[1-9][0-9]{0,18}')
                THEN TRY_CAST(words AS BIGINT) END
            WHEN regexp_full_match(words,
                '[1-9][0-9]{0,18}:[0-9a-f]{16}:[A-Za-z0-9._/-]{1,200}')
            THEN TRY_CAST(split_part(words, ':', 1) AS BIGINT)
        END AS epoch,
        CASE WHEN encoding = 'epochfence' THEN split_part(words, ':', 2) END AS grant_id,
        CASE WHEN encoding = 'epochfence' THEN split_part(words, ':', 3)
            ELSE '~' || scope_header END AS scope
    FROM texts
), known AS (
    SELECT p.*, p.authority = 'max-seen' OR g.scope IS NOT NULL AS is_granted
    FROM parsed p
    LEFT JOIN (SELECT DISTINCT scope, epoch, grant_id FROM epochfence_grants) g
        USING (scope, epoch, grant_id)
), together AS (
    SELECT stamps_id,
        bool_or(is_barrier) AS is_barrier,
        CASE
            WHEN bool_or(epoch IS NULL) OR (bool_or(is_barrier) AND count(*) > 1)
            THEN 'malformed'
            WHEN count(DISTINCT scope) < count(*) THEN 'ambiguous'
        END AS problem,
        list({'scope': scope, 'epoch': epoch, 'grant_id': grant_id,
              'is_granted': is_granted} ORDER BY ordinal) AS stamps
    FROM known GROUP BY stamps_id
)
SELECT c.stamps_id, coalesce(t.is_barrier, false) AS is_barrier, t.problem,
    CASE WHEN t.problem IS NULL AND t.stamps IS NOT NULL THEN t.stamps ELSE [] END
        AS stamps
FROM epochfence_combinations c LEFT JOIN together t USING (stamps_id);

-- 4. Which starts of the known table count where. For records of one life and one
-- leader epoch, that is a question of offsets alone: each counts from a threshold on.

CREATE OR REPLACE TEMP TABLE epochfence_thresholds AS
SELECT * FROM (
    SELECT g.topic, g."partition", g.life_key, g.leader_key,
        k.scope, k.epoch, k.grant_id,
        CASE
            WHEN g.life_key <> '' AND k.topic_id <> g.life_key THEN -1
            WHEN k.leader_epoch IS NULL OR g.leader_key = -1
                OR k.leader_epoch = g.leader_key THEN k.start_offset
            WHEN k.leader_epoch < g.leader_key THEN -1
        END AS threshold
    FROM (
        SELECT DISTINCT topic, "partition", coalesce(life_id, '') AS life_key,
            coalesce(leader_epoch, -1) AS leader_key
        FROM epochfence_ordered
    ) g
    JOIN epochfence_known_starts k USING (topic, "partition")
)
WHERE threshold IS NOT NULL;

CREATE OR REPLACE TEMP TABLE epochfence_cuts AS
SELECT row_number() OVER () AS cut_id, *
FROM (SELECT DISTINCT topic, "partition", life_key, leader_key, threshold
      FROM epochfence_thresholds);

CREATE OR REPLACE TEMP TABLE epochfence_known AS
SELECT cut_id, scope, any_value(epoch) AS epoch,
    list(grant_id) AS grant_ids, bool_or(grant_id IS NULL) AS is_any
FROM (
    SELECT c.cut_id, t.scope, t.epoch, t.grant_id
    FROM epochfence_cuts c
    JOIN epochfence_thresholds t
        ON t.topic = c.topic AND t."partition" = c."partition"
        AND t.life_key = c.life_key AND t.leader_key = c.leader_key
        AND t.threshold <= c.threshold
    QUALIFY t.epoch = max(t.epoch) OVER (PARTITION BY c.cut_id, t.scope)
)
GROUP BY cut_id, scope;

-- 5. Runs and cases.

CREATE OR REPLACE TEMP TABLE epochfence_judged AS
SELECT topic, "partition", life, leader_epoch, "offset", cut_id, stamps_id,
    CAST(sum(is_new) OVER (
        PARTITION BY topic, "partition" ORDER BY number
        ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) AS BIGINT) AS run
FROM (
    SELECT *, CASE WHEN cut_id = lag(cut_id) OVER in_order
        AND stamps_id = lag(stamps_id) OVER in_order THEN 0 ELSE 1 END AS is_new
    FROM (
        SELECT o.*, coalesce(c.cut_id, 0) AS cut_id
        FROM epochfence_ordered o
        ASOF LEFT JOIN epochfence_cuts c
            ON o.topic = c.topic AND o."partition" = c."partition"
            AND coalesce(o.life_id, '') = c.life_key
            AND coalesce(o.leader_epoch, -1) = c.leader_key
            AND o."offset" >= c.threshold
    )
    WINDOW in_order AS (PARTITION BY topic, "partition" ORDER BY number)
);

CREATE OR REPLACE TEMP TABLE epochfence_cases AS
WITH distinct_cases AS (
    SELECT DISTINCT topic, "partition", cut_id, stamps_id FROM epochfence_judged
), required AS (
    SELECT topic, "partition", list_distinct(list_transform(s.required,
        lambda scope: replace(scope, '{partition}', CAST(p."partition" AS VARCHAR))))
        AS required
    FROM (SELECT DISTINCT topic, "partition" FROM distinct_cases) p
    JOIN epochfence_settings s USING (topic)
), known AS (
    SELECT cut_id, list({'scope': scope, 'epoch': epoch, 'grant_ids': grant_ids,
        'is_any': is_any}) AS known
    FROM epochfence_known GROUP BY cut_id
), opened AS (
    SELECT d.*, t.is_barrier, t.problem, t.stamps, r.required,
        coalesce(k.known, []) AS known,
        list_filter(r.required, lambda scope: NOT list_contains(
            list_transform(t.stamps, lambda x: x.scope), scope)) AS missing
    FROM distinct_cases d
    JOIN epochfence_stamps t USING (stamps_id)
    JOIN required r USING (topic, "partition")
    LEFT JOIN known k USING (cut_id)
)
SELECT row_number() OVER () AS case_id,
    topic, "partition", cut_id, stamps_id, is_barrier, problem,
    -- Whose beginning ends "until the first stamp": null for any at all.
    CASE WHEN len(required) > 0 THEN missing END AS awaited,
    NOT is_barrier AND CASE WHEN len(required) > 0 THEN len(missing) > 0
        ELSE len(stamps) = 0 END AS lacks,
    CASE WHEN len(required) > 0 THEN list_has_any(missing,
            list_transform(known, lambda k: k.scope))
        ELSE len(known) > 0 END AS has_begun,
    list_transform(
        list_transform(stamps, lambda x: {
            'stamp': x,
            'known': list_filter(known, lambda k: k.scope = x.scope)[1]}),
        lambda p, i: {
            'ordinal': i,
            'scope': p.stamp.scope,
            'epoch': p.stamp.epoch,
            'grant_id': p.stamp.grant_id,
            'is_granted': p.stamp.is_granted,
            'known_epoch': p.known.epoch,
            'known_fits': coalesce(list_contains(p.known.grant_ids, p.stamp.grant_id),
                false),
            'known_is_any': coalesce(p.known.is_any, false)}) AS stamps
FROM opened;

CREATE OR REPLACE TEMP TABLE epochfence_runs AS
SELECT DISTINCT c.case_id, c.topic, c."partition", j.run
FROM epochfence_judged j
JOIN epochfence_cases c USING (topic, "partition", cut_id, stamps_id);

-- 6. The rows of the rules. `found` holds the highest epoch that began in these records,
-- of each scope: it counts for all that comes later.

CREATE OR REPLACE TEMP MACRO epochfence_seen(stamps, found) AS
    list_transform(
        list_transform(stamps, lambda x: {
            'x': x, 'f': list_filter(found, lambda f: f.scope = x.scope)[1]}),
        lambda p: {
            'x': p.x,
            'now': greatest(p.x.known_epoch, p.f.epoch),
            'fits': p.x.grant_id IS NULL
                OR coalesce(p.x.known_epoch = p.x.epoch AND p.x.known_fits, false)
                OR coalesce(p.f.epoch = p.x.epoch AND p.f.grant_id = p.x.grant_id,
                    false)});

-- Each stamp's own row: the lowest decides, and of equal ones the first stamp.
CREATE OR REPLACE TEMP MACRO epochfence_ranked(stamps, found, max_jump) AS
    list_transform(epochfence_seen(stamps, found), lambda s: {
        'rank': CASE
            WHEN s.x.epoch < s.now THEN 1
            WHEN s.x.epoch = s.now THEN CASE
                WHEN s.fits THEN 9
                WHEN NOT s.x.is_granted THEN 3
                WHEN s.x.known_is_any AND s.x.known_epoch = s.now THEN 9
                ELSE 2 END
            WHEN NOT s.x.is_granted THEN 4
            WHEN s.x.epoch - s.now > max_jump THEN 4
            ELSE 9 END,
        'ordinal': s.x.ordinal,
        'reason': CASE
            WHEN s.x.epoch < s.now THEN 'stale-epoch'
            WHEN NOT s.x.is_granted THEN 'ungranted'
            WHEN s.x.epoch = s.now THEN 'conflict'
            ELSE 'implausible' END,
        'scope': s.x.scope,
        'epoch': s.x.epoch,
        'grant_id': s.x.grant_id,
        'now': s.now,
        'opens': s.now IS NULL OR s.x.epoch > s.now});

CREATE OR REPLACE TEMP MACRO epochfence_is_kept_out(
    lacks, awaited, has_begun, found, unstamped
) AS
    lacks AND (unstamped = 'quarantine' OR (unstamped = 'admit-until-first-stamp' AND (
        has_begun OR CASE WHEN awaited IS NULL THEN len(found) > 0
            ELSE list_has_any(awaited, list_transform(found, lambda f: f.scope)) END)));

-- 7. From opening to opening.

CREATE OR REPLACE TEMP TABLE epochfence_openings AS
WITH RECURSIVE openable AS (
    SELECT c.*, s.unstamped, s.max_jump
    FROM epochfence_cases c JOIN epochfence_settings s USING (topic)
    WHERE c.problem IS NULL AND len(list_filter(c.stamps, lambda x: x.is_granted
        AND (x.known_epoch IS NULL OR x.epoch > x.known_epoch))) > 0
), openings AS (
    SELECT DISTINCT topic, "partition", CAST(0 AS BIGINT) AS run,
        CAST([] AS STRUCT(scope VARCHAR, epoch BIGINT, grant_id VARCHAR)[]) AS found
    FROM epochfence_judged
    UNION ALL
    SELECT topic, "partition", run,
        list_concat(
            list_filter(found, lambda f: NOT list_contains(
                list_transform(opened, lambda o: o.scope), f.scope)),
            opened) AS found
    FROM (
        SELECT topic, "partition", min(run) AS run, any_value(found) AS found,
            arg_min(list_transform(list_filter(ranked, lambda r: r.opens),
                lambda r: {'scope': r.scope, 'epoch': r.epoch, 'grant_id': r.grant_id}),
                run) AS opened
        FROM (
            SELECT o.topic, o."partition", o.found, a.ranked, r.run
            FROM (
                SELECT o.topic, o."partition", o.run, o.found, c.case_id,
                    epochfence_ranked(c.stamps, o.found, c.max_jump) AS ranked
                FROM openings o JOIN openable c USING (topic, "partition")
                WHERE NOT epochfence_is_kept_out(
                    c.lacks, c.awaited, c.has_begun, o.found, c.unstamped)
            ) a
            JOIN openings o USING (topic, "partition")
            JOIN epochfence_runs r ON r.case_id = a.case_id AND r.run > a.run
            WHERE len(list_filter(a.ranked, lambda x: x.rank < 9)) = 0
                AND len(list_filter(a.ranked, lambda x: x.opens)) > 0
        )
        GROUP BY topic, "partition"
    )
)
SELECT * FROM openings;

-- 8. Each case between two openings, and from there each record.

CREATE OR REPLACE TEMP TABLE epochfence_outcomes AS
SELECT case_id, opening,
    CASE
        WHEN problem IS NOT NULL OR is_kept_out THEN 'quarantined'
        WHEN decisive.rank = 1 THEN 'stale'
        WHEN decisive.rank < 9 THEN 'quarantined'
        WHEN is_barrier THEN 'barrier'
        ELSE 'admitted' END AS verdict,
    CASE
        WHEN problem IS NOT NULL THEN problem
        WHEN is_kept_out THEN 'unstamped'
        WHEN decisive.rank < 9 THEN decisive.reason
        WHEN lacks THEN 'unstamped'
        ELSE 'ok' END AS reason,
    CASE WHEN NOT is_kept_out THEN decisive.scope END AS scope,
    CASE WHEN NOT is_kept_out THEN decisive.epoch END AS epoch,
    CASE WHEN is_kept_out THEN NULL
        WHEN decisive.rank < 9 THEN decisive.now
        ELSE decisive.epoch END AS current_epoch
FROM (
    SELECT c.case_id, o.run AS opening, c.problem, c.is_barrier, c.lacks,
        epochfence_is_kept_out(c.lacks, c.awaited, c.has_begun, o.found, s.unstamped)
            AS is_kept_out,
        list_min(epochfence_ranked(c.stamps, o.found, s.max_jump)) AS decisive
    FROM (
        SELECT DISTINCT r.case_id, o.topic, o."partition", o.run
        FROM epochfence_runs r
        ASOF JOIN epochfence_openings o
            ON r.topic = o.topic AND r."partition" = o."partition" AND r.run > o.run
    ) d
    JOIN epochfence_cases c USING (case_id)
    JOIN epochfence_openings o
        ON o.topic = d.topic AND o."partition" = d."partition" AND o.run = d.run
    JOIN epochfence_settings s ON s.topic = d.topic
);

CREATE OR REPLACE TEMP TABLE epochfence_verdicts AS
SELECT j.topic, j."partition", j.life, j.leader_epoch, j."offset",
    u.verdict, u.reason, u.scope, u.epoch, u.current_epoch
FROM epochfence_judged j
JOIN (
    SELECT r.topic, r."partition", r.run, r.case_id, o.run AS opening
    FROM epochfence_runs r
    ASOF JOIN epochfence_openings o
        ON r.topic = o.topic AND r."partition" = o."partition" AND r.run > o.run
) r ON r.topic = j.topic AND r."partition" = j."partition" AND r.run = j.run
JOIN epochfence_outcomes u ON u.case_id = r.case_id AND u.opening = r.opening;
