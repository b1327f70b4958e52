/*
 * The table of job keys, and the questions one can ask it. A key stands in the table once for every set of choices
 * under which its default or its legal values differ.
 */
#ifndef GACC_JOB_KEYS_H
#define GACC_JOB_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/gacc/v1/job.pb-c.h"

enum key_type {
    KEY_SECTION, /* a mapping of keys */
    KEY_GROUPS,  /* a list of mappings: optimizer.groups */
    KEY_BOOL,
    KEY_CHOICE, /* an enum of job.proto */
    KEY_U32,
    KEY_U64,
    KEY_NUMBER, /* double */
    KEY_PAIR,   /* two doubles, one behind the other in the message */
    KEY_SECONDS,
    KEY_TEXT,
    KEY_PATH,     /* ${VAR} replaced */
    KEY_ENDPOINT, /* unix:… or tcp://…, ${VAR} replaced */
    KEY_PATHS,    /* one or a list, globs expanded */
    KEY_SPLIT,    /* as KEY_PATHS, or the fraction behind it in the message */
    KEY_U32_LIST,
    KEY_TEXTS,   /* one or a list */
    KEY_TENSORS, /* a mapping of tensor names to lists of numbers */
    KEY_TYPES,
};

/* The message a key's value lies in. */
enum section {
    IN_NONE,
    IN_SPEC, /* the job itself */
    IN_JOB,
    IN_MODEL,
    IN_DATA,
    IN_BATCH,
    IN_PRECISION,
    IN_LOSS_SCALE,
    IN_OPTIMIZER,
    IN_GROUP, /* one of optimizer.groups */
    IN_SCHEDULE,
    IN_EVALUATION,
    IN_CHECKPOINT,
    IN_CONTROL,
    IN_ASIDE, /* struct key_aside: worked into other numbers when the job is read */
};

struct key_aside {
    uint64_t batch_tokens;
};

/* The choices that other keys depend on. */
enum selector {
    BY_NOTHING,
    BY_MODEL,
    BY_NORM,
    BY_NORM_STATS,
    BY_FORMAT,
    BY_COMPUTE,
    BY_MODE,
    BY_PROFILE,
    BY_ON_OVERFLOW,
    BY_OPTIMIZER,
    BY_SCHEDULE,
    BY_LR_SCALING,
    SELECTORS,
};

struct condition {
    enum selector by;
    unsigned values; /* one bit per number of the enum */
};

struct choice {
    const char *name; /* NULL ends the list */
    int value;
};

/* Whether a running job takes another value, and which window is the first one with it. */
enum live {
    LIVE_NEVER,
    LIVE_NEXT_WINDOW,
    LIVE_WINDOW_AFTER, /* the next one's plan is out already */
};

struct key {
    const char *path; /* an element of a list is * */
    enum key_type type;
    enum section section;
    size_t offset;         /* of a repeated field: of its count */
    const char *fallback;  /* the default as the job file would have it; NULL: the key is needed; "": none */
    const char *computed;  /* says where the default comes from when it is not a constant */
    double least, most;    /* most 0: no bound */
    bool above, below;     /* the bound itself is not in the range */
    bool nullable;         /* null is legal and stored as 0 or nothing */
    bool none_at_zero;     /* a number that is 0 is as if it were not given */
    bool by_profile;       /* the default is the loss-scale profile's, daemon/core/loss_scale */
    enum selector selects; /* this choice is what others depend on */
    const struct choice *choices;
    enum live live;
    struct condition when[3];
    const char *unit;
    const char *help;
};

extern const struct key keys[];
extern const size_t key_count;

/* Words that stand in the manual of the whole product but not in this version. value NULL: the key itself; a path
 * ending in . stands for all that begins with it. */
struct absent {
    const char *path, *value, *why;
};
extern const struct absent absent_keys[];
extern const size_t absent_count;

/* The message that holds the key's value; NULL when the job has none (loss_scale without fp16). */
void *key_base(const Gacc__V1__JobSpec *job, struct key_aside *aside, Gacc__V1__ParameterGroup *group,
               enum section section);
/* Whether the key belongs to a job with such choices, selectors being set already; *failed (may be NULL) is the
 * condition that says no. */
bool key_applies(const struct key *key, const Gacc__V1__JobSpec *job, const struct condition **failed);
/* The row of that path which applies; NULL when none does, *any being the first row of that path or NULL. */
const struct key *key_find(const Gacc__V1__JobSpec *job, const char *path, const struct key **any);
/* Where a path of the job's file leads: elements of lists by their index. */
struct key_place {
    const struct key *key; /* the row that applies; NULL: none does */
    const struct key *any; /* then the first row of such a path; NULL: there is none, or no such element */
    size_t optimizer;      /* whose key it is, of a list */
    const Gacc__V1__ParameterGroup *group; /* whose key it is; NULL: no group's */
};
struct key_place key_follow(const Gacc__V1__JobSpec *job, const char *path);
/* The key that is a selector; of several rows the first, which has all of its choices. */
const struct key *key_of_selector(enum selector selector);
int key_selector_value(const Gacc__V1__JobSpec *job, enum selector selector);
const char *choice_name(const struct choice *choices, int value);
const struct absent *absent_find(const char *path, const char *value);

struct phrase {
    char text[256];
};
/* What a file calls a key of its index-th optimizer: optimizer.lr, or in a list optimizer.0.lr. Other keys have the
 * table's path. */
struct phrase key_path(bool is_list, size_t optimizer, const char *path);
/* "gpt, mlp": the choices that fulfil it. */
struct phrase condition_values(const struct condition *condition);

/* Whether the path's last word is one for a number that follows from others, as K does: no key, in whatever section. */
bool key_is_derived(const char *path);
#define KEY_IS_DERIVED "is derived: K and M follow from batch.global, batch.micro and the ranks"
/* "; did you mean …?" or "; there are …" for an unknown key below a section ("" is the whole job). */
struct phrase key_suggestion(const char *section, const char *leaf);
/* "is not one of …; did you mean …?", or of which other choice it is one: "is for model.type mlp; here it is one of …"
 */
struct phrase choice_suggestion(const struct key *key, const char *wrong);

#endif
