/*
 * What went wrong, in the words the user reads, and the exit status that goes with it.
 *
 * Every function that can fail returns 0 or the negated status and fills one `struct error` that its caller
 * owns. The text names the file, key, tensor or rank; it is printed once, at the top of the program. A worker's
 * error crosses the wire as a Failure message, so both ends share these numbers.
 */
#ifndef GACC_ERROR_H
#define GACC_ERROR_H

#include <stdint.h>

enum status {
    STATUS_DONE = 0,
    STATUS_REFUSED = 1,      /* gaccctl: the job does not do that now */
    STATUS_USAGE = 64,       /* command line */
    STATUS_DATA = 65,        /* the data is wrong */
    STATUS_MISSING = 66,     /* an input is missing or unreadable */
    STATUS_UNAVAILABLE = 69, /* cannot reach or bind */
    STATUS_INTERNAL = 70,    /* a fault of ours, or a process that died */
    STATUS_IO = 74,          /* reading or writing failed */
    STATUS_AGAIN = 75,       /* checkpoint saved, run me again */
    STATUS_NUMERICS = 76,    /* non-finite limit reached, verification failed */
    STATUS_DENIED = 77,      /* gaccctl: not allowed */
    STATUS_JOB = 78,         /* the job file */
};

struct error {
    enum status status;
    char text[1024]; /* one line, without the program's name and without a newline */
};

/* Fills *error (may be NULL) and returns -status, so that a failing path reads `return error_set(...)`. A text that
 * does not fit is cut; control characters in it become '?', so that it stays one line. */
__attribute__((format(printf, 3, 4))) int error_set(struct error *error, enum status status, const char *format, ...);

/* As error_set, with ": " and strerror(number) after the text. */
__attribute__((format(printf, 4, 5))) int error_set_errno(struct error *error, enum status status, int number,
                                                          const char *format, ...);

/* What a Failure message's number stands for: STATUS_INTERNAL for 0 and whatever is none of ours. */
enum status status_received(uint32_t number);

/* As error_set, from a Failure message; one without a text says that it has none. */
int error_received(struct error *error, uint32_t number, const char *text);

/* Puts the formatted text and ": " before what *error holds; returns -error->status. */
__attribute__((format(printf, 2, 3))) int error_prefix(struct error *error, const char *format, ...);

#endif
