/* Any bytes to the server's half of HTTP/1.1: what is asked and answered does not depend on how they were cut, answers
 * are whole, and an end that is through says so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/http/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size);

enum { HEARD_MAX = 1 << 18, SAID_MAX = 1 << 20 };

struct talk {
    size_t heard_length, said_length;
    bool has_ended;
    char heard[HEARD_MAX], said[SAID_MAX];
};

static void handle(const struct http_request *request, struct http_answer *answer, void *context)
{
    struct talk *talk = context;
    const size_t path = strlen(request->path);
    if (path >= HTTP_HEAD_MAX || strpbrk(request->path, "?#")) abort();
    talk->heard_length += (size_t)snprintf(talk->heard + talk->heard_length, HEARD_MAX - talk->heard_length, "[%s %s]",
                                           request->path, request->authorization ? request->authorization : "-");
    if (talk->heard_length >= HEARD_MAX) talk->heard_length = HEARD_MAX - 1;
    answer->status = path > 8 ? 404 : 200;
    answer->type = "text/plain";
    answer->body = path > 4 ? strdup("body") : NULL;
    answer->length = answer->body ? 4 : 0;
}

static void take_output(struct http_connection *c, struct talk *talk)
{
    const uint8_t *bytes;
    for (size_t length; (length = http_output(c, &bytes)) > 0;) {
        if (length < 12 || memcmp(bytes, "HTTP/1.1 ", 9) != 0) abort();
        const size_t room = SAID_MAX - talk->said_length, take = length < room ? length : room;
        memcpy(talk->said + talk->said_length, bytes, take);
        talk->said_length += take;
    }
}

static void converse(struct talk *talk, const uint8_t *bytes, size_t size, size_t cut, uint8_t end)
{
    struct http_connection *c;
    struct error error;
    talk->heard_length = talk->said_length = 0;
    if (http_open(&c, handle, talk, &error)) abort();
    bool failed = false;
    for (size_t done = 0, length; done < size && !failed && !http_wants_close(c); done += length) {
        length = size - done < cut ? size - done : cut;
        failed = http_input(c, bytes + done, length, &error) != 0;
        if (failed && error.text[0] == '\0') abort();
        take_output(c, talk);
    }
    if (end & 1) http_time_out(c);
    if (end & 2) http_drain(c);
    take_output(c, talk);
    if ((failed || (end & 1)) && !http_wants_close(c)) abort();
    talk->has_ended = http_wants_close(c);
    http_close(c);
}

/* The first byte chooses how they are cut and what happens at the end. */
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct talk whole, pieces;
    static const size_t cuts[] = {1, 3, 17, 1000};
    if (size == 0 || size > HTTP_INPUT_MAX) return 0;
    converse(&whole, bytes + 1, size - 1, SIZE_MAX, bytes[0]);
    converse(&pieces, bytes + 1, size - 1, cuts[bytes[0] >> 2 & 3], bytes[0]);
    if (whole.heard_length != pieces.heard_length || whole.said_length != pieces.said_length ||
        memcmp(whole.heard, pieces.heard, whole.heard_length) != 0 ||
        memcmp(whole.said, pieces.said, whole.said_length) != 0 || whole.has_ended != pieces.has_ended)
        abort();
    return 0;
}
