/*
 * Two ends of gRPC back to back in memory. What each end's callbacks saw is written as one line of words, so that a
 * test reads as a conversation.
 */
#ifndef GACC_TESTS_RPC_LINK_H
#define GACC_TESTS_RPC_LINK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "proto/rpc/rpc.h"

#define LOG 8192

struct link {
    struct rpc_connection *client, *server;
    size_t cut;         /* bytes given to rpc_input at once */
    struct error error; /* of the last rpc_input that failed */
    bool to_client_blocked;
    struct rpc_call *server_call; /* the last one begun */
    char heard_by_client[LOG], heard_by_server[LOG];
};

__attribute__((format(printf, 2, 3))) static inline void note(char *log, const char *format, ...)
{
    size_t length = strlen(log);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(log + length, LOG - length, format, arguments);
    va_end(arguments);
}

static inline void note_message(char *log, const uint8_t *message, size_t length)
{
    if (length <= 64)
        note(log, "[%.*s] ", (int)length, (const char *)message);
    else
        note(log, "[%zu bytes] ", length);
}

static inline int send_text(struct rpc_call *call, const char *text)
{
    return rpc_call_send(call, (const uint8_t *)text, strlen(text));
}

static inline void server_begin(struct rpc_call *call, void *context)
{
    struct link *link = context;
    link->server_call = call;
    note(link->heard_by_server, "begin ");
}

static inline void server_note(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)call;
    struct link *link = context;
    note_message(link->heard_by_server, message, length);
}

static inline void server_echo(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    server_note(call, message, length, context);
    assert_int_equal(rpc_call_send(call, message, length), 0);
}

static inline void server_end(struct rpc_call *call, void *context)
{
    (void)call;
    struct link *link = context;
    note(link->heard_by_server, "end ");
}

static inline void server_end_and_finish(struct rpc_call *call, void *context)
{
    server_end(call, context);
    rpc_call_finish(call, RPC_OK, NULL);
}

static inline void server_gone(struct rpc_call *call, void *context)
{
    struct link *link = context;
    const char *text;
    enum rpc_code code = rpc_call_status(call, &text);
    note(link->heard_by_server, "gone %d%s%s ", (int)code, text[0] != '\0' ? " " : "", text);
    if (link->server_call == call) link->server_call = NULL;
}

static inline void server_refuse(struct rpc_call *call, void *context)
{
    server_begin(call, context);
    rpc_call_finish(call, RPC_UNAUTHENTICATED, "gacc-secret-bin: 100 % wrong\né");
}

static inline void server_finish_at_once(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    server_note(call, message, length, context);
    rpc_call_finish(call, RPC_OK, NULL);
}

#define SERVER_METHOD(PATH, BEGIN, MESSAGE, END)                                                    \
    {                                                                                               \
        .path = (PATH), .begin = (BEGIN), .message = (MESSAGE), .end = (END), .gone = (server_gone) \
    }

static const struct rpc_method methods[] = {
    SERVER_METHOD("/t.T/Echo", server_begin, server_echo, server_end_and_finish),
    SERVER_METHOD("/t.T/Manual", server_begin, server_note, server_end),
    SERVER_METHOD("/t.T/First", server_begin, server_finish_at_once, server_end),
    SERVER_METHOD("/t.T/Refuse", server_refuse, server_note, server_end),
    {.path = "/t.T/Unary",
     .begin = server_begin,
     .message = server_note,
     .end = server_end_and_finish,
     .gone = server_gone,
     .one_message = true},
    {0},
};

static inline void client_message(struct rpc_call *call, const uint8_t *message, size_t length, void *context)
{
    (void)call;
    struct link *link = context;
    note_message(link->heard_by_client, message, length);
}

static inline void client_gone(struct rpc_call *call, void *context)
{
    struct link *link = context;
    const char *text;
    enum rpc_code code = rpc_call_status(call, &text);
    note(link->heard_by_client, "status %d%s%s ", (int)code, text[0] != '\0' ? " " : "", text);
}

/* The client's row for a path. */
#define CLIENT_METHOD(PATH)                                            \
    {                                                                  \
        .path = (PATH), .message = client_message, .gone = client_gone \
    }

static inline void link_open_with(struct link *link, const struct rpc_limits *client, const struct rpc_limits *server)
{
    *link = (struct link){.cut = SIZE_MAX};
    assert_int_equal(rpc_client_open(&link->client, "localhost", client, &link->error), 0);
    assert_int_equal(rpc_server_open(&link->server, methods, link, server, &link->error), 0);
}

static inline void link_open(struct link *link)
{
    link_open_with(link, NULL, NULL);
}

static inline void link_close(struct link *link)
{
    rpc_close(link->client);
    rpc_close(link->server);
}

static inline bool carry(struct link *link, struct rpc_connection *from, struct rpc_connection *to)
{
    const uint8_t *bytes;
    size_t length = rpc_output(from, &bytes);
    for (size_t done = 0, take; done < length; done += take) {
        take = link->cut < length - done ? link->cut : length - done;
        rpc_input(to, bytes + done, take, &link->error);
    }
    return length > 0;
}

static inline void run(struct link *link)
{
    bool moved = true;
    while (moved) {
        moved = carry(link, link->client, link->server);
        if (!link->to_client_blocked) moved |= carry(link, link->server, link->client);
    }
}

#endif
