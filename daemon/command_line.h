/* What the command lines of gaccd and gaccctl share: the words for those who slipped. */
#ifndef GACC_COMMAND_LINE_H
#define GACC_COMMAND_LINE_H

#include <getopt.h>

#include "proto/error.h"

/* After getopt_long has answered '?' or ':' (its short options begin with ':', opterr is 0): fills *error with what is
 * wrong with that word, 64. */
int option_fault(int answer, char **words, const struct option *options, struct error *error);

#endif
