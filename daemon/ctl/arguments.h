/* gaccctl's command line, as its subcommands get it. They return 0, or a negative exit status with *error filled. */
#ifndef GACC_CTL_ARGUMENTS_H
#define GACC_CTL_ARGUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/ctl/target.h"
#include "proto/error.h"

struct arguments {
    struct target_words words;
    struct target *target;
    uint64_t from; /* step; 0: not given */
    bool json, wait, finish, live;
    char **operands;
    int operand_count;
    struct error *error;
};

/* ask.c: one question, one answer. */
int ask_status(const struct arguments *arguments);
int ask_pause(const struct arguments *arguments);
int ask_resume(const struct arguments *arguments);
int ask_checkpoint(const struct arguments *arguments);
int ask_stop(const struct arguments *arguments);
int ask_set(const struct arguments *arguments);
int ask_config(const struct arguments *arguments);
int ask_health(const struct arguments *arguments);
/* watch.c: a row for each line of the log, until the job ends. */
int watch(const struct arguments *arguments);
/* top.c: the whole screen, until q. */
int top(const struct arguments *arguments);

#endif
