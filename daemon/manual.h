/*
 * What a program's subcommands and options are, as one table: getopt's tables, --help, the man page, the shell
 * completion and deploy/docs/NAME.md are made from it.
 */
#ifndef GACC_MANUAL_H
#define GACC_MANUAL_H

#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>

#include "proto/error.h"

struct arguments; /* the program's own */

struct manual_option {
    const char *name;  /* long, without its dashes; NULL: only the letter */
    int key;           /* what getopt answers; the letter, if it has one */
    bool has_letter;   /* -key is the same */
    const char *value; /* DIR; NULL: takes none */
    /* How a shell completes the value: file, directory, runs (run directories), or words: "auto|cpu". NULL: it does
     * not. */
    const char *completion;
    const char *help; /* one sentence, without its capital and full stop */
};

struct manual_command {
    const char *name;
    const char *operand;                  /* "JOB.yaml"; ending in "…": one or more; NULL: none */
    const char *completion;               /* of the operand: as an option's, or keys (those that can be set) */
    const struct manual_option *options;  /* its own, ended by an empty row; NULL: none */
    int (*act)(const struct arguments *); /* NULL: not offered by this version */
    const char *help;                     /* one sentence, without its capital and full stop */
    const char
        *text; /* more; NULL: nothing. Paragraphs lie apart by an empty line, one that begins with spaces is verbatim */
};

struct manual_section {
    const char *title, *text; /* as a command's */
};

struct manual {
    const char *program, *summary;
    const char *usage;                     /* of the program: behind its name */
    const struct manual_option *options;   /* of every command; ended by an empty row; NULL: none */
    const struct manual_command *commands; /* ended by an empty row */
    bool first_is_meant;                   /* where no command is named: its word may be left out */
    const struct manual_section *sections; /* ended by an empty row */
};

#define MANUAL_OPTIONS_MAX 32

/* getopt's own tables: the options of all commands together, or (command) the general ones and its own. */
struct manual_getopt {
    struct option options[MANUAL_OPTIONS_MAX + 1];
    char letters[2 * MANUAL_OPTIONS_MAX + 2];
};
void manual_getopt(const struct manual *manual, const struct manual_command *command, struct manual_getopt *out);
/* NULL: none has that name. */
const struct manual_command *manual_find(const struct manual *manual, const char *name);
/* Whether `key` is one of a command's own options (NULL: of the general ones). */
bool manual_has_option(const struct manual *manual, const struct manual_command *command, int key);
/* The name that it would have, among those offered; 64 with the nearest in *error. */
int manual_no_command(const struct manual *manual, const char *name, struct error *error);

/* --help of the program, or of one command. */
void manual_help(const struct manual *manual, const struct manual_command *command, FILE *to);
/* `what`: man, completion (bash) or markdown; false: none of these. */
bool manual_print(const struct manual *manual, const char *what, FILE *to);

#endif
