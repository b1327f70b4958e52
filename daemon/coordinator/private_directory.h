/* Directories in which nobody else can put a socket in the place of ours. */
#ifndef GACC_PRIVATE_DIRECTORY_H
#define GACC_PRIVATE_DIRECTORY_H

#include "proto/error.h"

/* It is a directory (no symbolic link to one), ours, and nobody else may write in it; nor may others rename it: the
 * directory it lies in is closed to them, or sticky. Else 69 with the reason and what to do. */
int private_directory_check(const char *path, struct error *error);
/* A new one, 0700. */
int private_directory_make(const char *path, struct error *error);

#endif
