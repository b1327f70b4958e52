/*
 * What the coordinator has to say goes to the terminal of rank 0: its notes are read on a thread, and shown in the
 * order in which they came.
 */
#ifndef GACC_NOTES_H
#define GACC_NOTES_H

#include <pthread.h>
#include <stdbool.h>

#include "proto/error.h"

struct notes {
    int from; /* struct coordinator_note, until end of file; stays the caller's */
    pthread_t reader;
    pthread_mutex_t showing; /* of whoever reads a note until it is shown */
};

int notes_open(struct notes *notes, int from, struct error *error);
/* Shows what has been said so far, for whoever goes on to say what comes behind it. False: no more will come. */
bool notes_show(struct notes *notes);
/* Waits for the end of file. */
void notes_close(struct notes *notes);

#endif
