/*
 * The server's half of HTTP/1.1 (http_parser), without I/O: bytes in, bytes out, as in rpc.h. Answers GET and HEAD;
 * requests have no bodies.
 *
 * What a connection can allocate is capped, whatever the peer sends: HTTP_HEAD_MAX bytes of a request's head,
 * HTTP_INPUT_MAX bytes that wait behind it, and one answer, whose size is the handler's affair. The next request of a
 * connection is looked at when the answer to the last has left.
 */
#ifndef GACC_HTTP_H
#define GACC_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "proto/error.h"

#define HTTP_HEAD_MAX (8u << 10)
#define HTTP_INPUT_MAX (128u << 10)

struct http_connection;

struct http_request {
    const char *path;          /* without its query */
    const char *authorization; /* NULL: none */
};

struct http_answer {
    unsigned status;  /* 200, 401, 404, 503 … */
    const char *type; /* of the body */
    char *body;       /* free() by this module; may be NULL */
    size_t length;
};

typedef void http_handler(const struct http_request *request, struct http_answer *answer, void *context);

int http_open(struct http_connection **out, http_handler *handler, void *context, struct error *error);
void http_close(struct http_connection *connection); /* NULL is allowed */
/* Negative: no request can be made of it. Close the socket after writing what http_output still has: it says why. */
int http_input(struct http_connection *connection, const uint8_t *bytes, size_t length, struct error *error);
/* As rpc_output: borrowed until the next http_input, http_output or http_close; call until 0. The handler runs in here
 * or in http_input. */
size_t http_output(struct http_connection *connection, const uint8_t **bytes);
bool http_wants_close(const struct http_connection *connection);
/* A request has begun and is not whole. */
bool http_is_waiting(const struct http_connection *connection);
/* That has lasted too long: 408, then http_wants_close. */
void http_time_out(struct http_connection *connection);
/* No request is answered any more once the one under way is. */
void http_drain(struct http_connection *connection);

#endif
