/*
 * A YAML document as a small tree that remembers where everything stood. Strict: anchors, aliases, tags, a second
 * document, duplicate keys and keys that are not scalars are refused while it is built. Knows nothing of jobs.
 */
#ifndef GACC_JOB_TREE_H
#define GACC_JOB_TREE_H

#include <stdbool.h>
#include <stddef.h>

#include "proto/error.h"

#define TREE_DEPTH_LIMIT 16
#define TREE_KEYS_LIMIT 4096 /* of one mapping: finding duplicates is quadratic */

/* Where a text came from, for messages. */
struct source {
    const char *file; /* named in errors as FILE:LINE:COLUMN */
    const char *set;  /* the key path of a --set, named instead; NULL: the file */
};

enum node_kind { NODE_SCALAR, NODE_LIST, NODE_MAPPING };

struct node {
    enum node_kind kind;
    bool plain;                          /* a scalar without quotes */
    char *key;                           /* in the mapping around it, else NULL */
    char *text;                          /* of a scalar: UTF-8 without NUL */
    unsigned line, column;               /* of the value, from 1 */
    unsigned key_line, key_column;       /* of the key; the value's own without one */
    const struct source *source;         /* borrowed */
    struct node *children, *last, *next; /* in order; next: the sibling */
};

/* The one document of the text, which the caller has checked to be UTF-8 (text_fault). *out is NULL when it holds none.
 * The caller keeps *source for as long as the tree. */
int tree_parse(struct node **out, const char *text, size_t length, const struct source *source, struct error *error);
void tree_free(struct node *node);

/* The child of a mapping with that key, or of a list with that number; NULL when there is none. */
struct node *tree_child(const struct node *parent, const char *key, size_t length);
/* The node at a path such as optimizer.groups.0.lr; NULL when there is none. */
struct node *tree_find(struct node *root, const char *path);
/* Takes and frees the node at the path, if there is one. */
void tree_remove(struct node *root, const char *path);
/* Puts `value` (owned by the tree afterwards, freed on failure) at the path, making the mappings and lists on the way;
 * a list takes the numbers of its elements and the one after the last. From path + whole on, the rest is one key, dots
 * included. */
int tree_put(struct node *root, const char *path, size_t whole, struct node *value, struct error *error);

/* status 78: "FILE:LINE:COLUMN: path: text", or "--set PATH: text" (with the path in between where it differs). A NULL
 * path is left out. */
__attribute__((format(printf, 4, 5))) int node_fail(const struct node *node, const char *path, struct error *error,
                                                    const char *format, ...);
/* As node_fail, at the node's key. */
__attribute__((format(printf, 4, 5))) int node_fail_key(const struct node *node, const char *path, struct error *error,
                                                        const char *format, ...);

#endif
