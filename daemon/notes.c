#include "daemon/notes.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <unistd.h>

#include "daemon/coordinator/coordinator.h"

static void show(const struct coordinator_note *note)
{
    switch (note->kind) {
    case NOTE_WARNING:
        fprintf(stderr, "gaccd: %s\n", note->text);
        break;
    case NOTE_FATAL:
        fprintf(stderr, "gaccd: %s\n", note->text);
        _exit((int)note->status); /* this rank hangs in MPI_Init, or in its way there */
    default:
        printf("\r\033[K%s%s", note->text, note->kind == NOTE_DONE ? "\n" : "");
        fflush(stdout);
        break;
    }
}

bool notes_show(struct notes *notes)
{
    struct pollfd from = {.fd = notes->from, .events = POLLIN};
    struct coordinator_note note;
    ssize_t length = sizeof note;
    pthread_mutex_lock(&notes->showing);
    while (length == sizeof note && poll(&from, 1, 0) > 0) {
        do length = read(notes->from, &note, sizeof note);
        while (length < 0 && errno == EINTR);
        if (length == sizeof note) show(&note);
    }
    pthread_mutex_unlock(&notes->showing);
    return length == sizeof note;
}

static void *read_notes(void *context)
{
    struct notes *notes = context;
    struct pollfd from = {.fd = notes->from, .events = POLLIN};
    do poll(&from, 1, -1);
    while (notes_show(notes));
    return NULL;
}

int notes_open(struct notes *notes, int from, struct error *error)
{
    notes->from = from;
    pthread_mutex_init(&notes->showing, NULL);
    const int number = pthread_create(&notes->reader, NULL, read_notes, notes);
    return number ? error_set_errno(error, STATUS_INTERNAL, number, "cannot start a thread") : 0;
}

void notes_close(struct notes *notes)
{
    pthread_join(notes->reader, NULL);
}
