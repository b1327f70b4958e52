#include "proto/http/http.h"

#include <http_parser.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#define NAME_MAX_BYTES 32   /* of a field that matters; longer ones do not */
#define VALUE_MAX_BYTES 512 /* of authorization */

struct http_connection {
    http_parser parser;
    http_handler *handler;
    void *context;

    uint8_t *input; /* not looked at yet: HTTP_INPUT_MAX at most */
    size_t input_length;
    char *output; /* one answer */
    size_t output_length;
    bool output_is_out; /* the caller has it */

    /* The request under way. */
    size_t head_length; /* bytes of it so far */
    char target[HTTP_HEAD_MAX];
    size_t target_length;
    char name[NAME_MAX_BYTES], value[VALUE_MAX_BYTES];
    size_t name_length, value_length;
    char authorization[VALUE_MAX_BYTES];
    bool has_authorization, has_begun, in_value, value_is_long;
    unsigned hosts;

    bool ending;   /* the answer that is made is the last */
    bool draining; /* the next one is */
    bool failed;
};

static const char *reason_of(unsigned status)
{
    static const struct {
        unsigned status;
        const char *reason;
    } reasons[] = {
        {200, "OK"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {408, "Request Timeout"},
        {413, "Content Too Large"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {503, "Service Unavailable"},
        {505, "HTTP Version Not Supported"},
    };
    for (size_t i = 0; i < sizeof reasons / sizeof *reasons; i++)
        if (reasons[i].status == status) return reasons[i].reason;
    return "Unknown";
}

/* No memory for an answer: the connection ends without one. */
static void write_answer(struct http_connection *c, const struct http_answer *answer, bool with_body)
{
    char head[512];
    const char *extra = answer->status == 401 ? "WWW-Authenticate: Bearer\r\n" : "";
    if (answer->status == 405) extra = "Allow: GET, HEAD\r\n";
    const char *stays = c->parser.http_minor == 0 ? "Connection: keep-alive\r\n" : ""; /* HTTP/1.1's rule */
    const int length =
        snprintf(head, sizeof head,
                 "HTTP/1.1 %u %s\r\nContent-Type: %s\r\nContent-Length: %zu\r\nCache-Control: no-store\r\n"
                 "X-Content-Type-Options: nosniff\r\n%s%s\r\n",
                 answer->status, reason_of(answer->status), answer->type, answer->length, extra,
                 c->ending ? "Connection: close\r\n" : stays);
    const size_t total = (size_t)length + (with_body ? answer->length : 0);
    char *output = malloc(total);
    if (output == NULL) {
        c->ending = true;
        return;
    }
    memcpy(output, head, (size_t)length);
    if (with_body && answer->length > 0) memcpy(output + length, answer->body, answer->length);
    free(c->output);
    c->output = output;
    c->output_length = total;
    c->output_is_out = false;
}

/* An answer of this module's own: its reason is its body. */
static void write_refusal(struct http_connection *c, unsigned status)
{
    char body[64];
    const int length = snprintf(body, sizeof body, "%s\n", reason_of(status));
    const struct http_answer answer = {status, "text/plain; charset=utf-8", body, (size_t)length};
    write_answer(c, &answer, c->parser.method != HTTP_HEAD);
}

static struct http_connection *of(http_parser *parser)
{
    return parser->data;
}

static int on_begin(http_parser *parser)
{
    struct http_connection *c = of(parser);
    c->has_begun = true;
    c->target_length = c->name_length = c->value_length = 0;
    c->has_authorization = c->in_value = c->value_is_long = false;
    c->hosts = 0;
    return 0;
}

static int on_url(http_parser *parser, const char *bytes, size_t length)
{
    struct http_connection *c = of(parser);
    if (length >= sizeof c->target - c->target_length) return 1; /* the head is counted elsewhere: cannot be */
    memcpy(c->target + c->target_length, bytes, length);
    c->target_length += length;
    return 0;
}

static void field_done(struct http_connection *c)
{
    if (!c->in_value) return;
    c->name[c->name_length] = c->value[c->value_length] = '\0';
    if (strcasecmp(c->name, "host") == 0) c->hosts++;
    if (strcasecmp(c->name, "authorization") == 0 && !c->value_is_long) {
        memcpy(c->authorization, c->value, c->value_length + 1);
        c->has_authorization = true;
    }
    c->name_length = c->value_length = 0;
    c->in_value = c->value_is_long = false;
}

static int on_field(http_parser *parser, const char *bytes, size_t length)
{
    struct http_connection *c = of(parser);
    field_done(c);
    const size_t room = sizeof c->name - 1 - c->name_length;
    const size_t take = length < room ? length : room; /* a longer one equals none that matters */
    memcpy(c->name + c->name_length, bytes, take);
    c->name_length += take;
    return 0;
}

static int on_value(http_parser *parser, const char *bytes, size_t length)
{
    struct http_connection *c = of(parser);
    c->in_value = true;
    const size_t room = sizeof c->value - 1 - c->value_length;
    if (length > room) c->value_is_long = true;
    const size_t take = length < room ? length : room;
    memcpy(c->value + c->value_length, bytes, take);
    c->value_length += take;
    return 0;
}

/* The target may be a whole address (RFC 9112, 3.2.2); whose is not asked, as of the field Host. */
static const char *path_of(char *target)
{
    static const char *const schemes[] = {"http://", "https://"};
    target[strcspn(target, "?#")] = '\0';
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++) {
        const size_t length = strlen(schemes[i]);
        if (strncasecmp(target, schemes[i], length) != 0) continue;
        const char *path = strchr(target + length, '/');
        return path != NULL ? path : "/";
    }
    return target;
}

static void answer(struct http_connection *c)
{
    c->target[c->target_length] = '\0';
    const struct http_request request = {path_of(c->target), c->has_authorization ? c->authorization : NULL};
    struct http_answer made = {0};
    c->handler(&request, &made, c->context);
    write_answer(c, &made, c->parser.method != HTTP_HEAD);
    free(made.body);
}

/* Everything is known: there are no bodies. */
static int on_head(http_parser *parser)
{
    struct http_connection *c = of(parser);
    field_done(c);
    const bool has_body =
        (parser->flags & F_CHUNKED) || (parser->content_length > 0 && parser->content_length != UINT64_MAX);
    if (has_body || c->draining || !http_should_keep_alive(parser)) c->ending = true;
    if (parser->http_major != 1) {
        c->ending = true;
        write_refusal(c, 505);
    } else if (c->hosts > 1 || (c->hosts == 0 && parser->http_minor > 0)) {
        c->ending = true;
        write_refusal(c, 400);
    } else if (parser->method != HTTP_GET && parser->method != HTTP_HEAD) {
        write_refusal(c, 405);
    } else if (has_body) {
        write_refusal(c, 413);
    } else {
        answer(c);
    }
    return 0;
}

static int on_complete(http_parser *parser)
{
    struct http_connection *c = of(parser);
    c->has_begun = false;
    c->head_length = 0;
    http_parser_pause(parser, 1); /* the next one waits until the answer has left */
    return 0;
}

static const http_parser_settings settings = {
    .on_message_begin = on_begin,
    .on_url = on_url,
    .on_header_field = on_field,
    .on_header_value = on_value,
    .on_headers_complete = on_head,
    .on_message_complete = on_complete,
};

int http_open(struct http_connection **out, http_handler *handler, void *context, struct error *error)
{
    struct http_connection *c = *out = calloc(1, sizeof *c);
    if (c == NULL) return error_set(error, STATUS_INTERNAL, "out of memory for a connection");
    http_parser_init(&c->parser, HTTP_REQUEST);
    c->parser.data = c;
    c->handler = handler;
    c->context = context;
    return 0;
}

void http_close(struct http_connection *c)
{
    if (c == NULL) return;
    free(c->input);
    free(c->output);
    free(c);
}

static void refuse(struct http_connection *c, unsigned status)
{
    c->failed = c->ending = true;
    c->parser.method = HTTP_GET;
    write_refusal(c, status);
}

/* Looks at what has come, up to the end of one request. */
static void parse(struct http_connection *c)
{
    if (c->input_length == 0 || c->output_length > 0 || c->ending) return;
    http_parser_pause(&c->parser, 0);
    const size_t room = HTTP_HEAD_MAX - c->head_length;
    const size_t give = c->input_length < room ? c->input_length : room;
    c->head_length += give; /* on_complete takes it back */
    const size_t taken = http_parser_execute(&c->parser, &settings, (const char *)c->input, give);
    const enum http_errno failure = HTTP_PARSER_ERRNO(&c->parser);
    if (c->ending) { /* whatever follows is not looked at */
        c->input_length = 0;
        return;
    }
    c->input_length -= taken;
    memmove(c->input, c->input + taken, c->input_length);
    if (failure != HPE_OK && failure != HPE_PAUSED)
        refuse(c, failure == HPE_HEADER_OVERFLOW ? 431 : failure == HPE_INVALID_VERSION ? 505 : 400);
    else if (c->has_begun && c->head_length == HTTP_HEAD_MAX)
        refuse(c, 431);
}

int http_input(struct http_connection *c, const uint8_t *bytes, size_t length, struct error *error)
{
    if (!c->ending) {
        if (length > HTTP_INPUT_MAX - c->input_length)
            return error_set(error, STATUS_INTERNAL, "HTTP: more requests than are taken at once");
        uint8_t *input = realloc(c->input, c->input_length + length + 1);
        if (input == NULL) return error_set(error, STATUS_INTERNAL, "HTTP: out of memory");
        memcpy(input + c->input_length, bytes, length);
        c->input = input;
        c->input_length += length;
        parse(c);
    }
    return c->failed ? error_set(error, STATUS_INTERNAL, "HTTP: not a request") : 0;
}

size_t http_output(struct http_connection *c, const uint8_t **bytes)
{
    if (c->output_is_out) {
        free(c->output);
        c->output = NULL;
        c->output_length = 0;
        c->output_is_out = false;
    }
    parse(c);
    if (c->output_length == 0) return 0;
    c->output_is_out = true;
    *bytes = (const uint8_t *)c->output;
    return c->output_length;
}

bool http_wants_close(const struct http_connection *c)
{
    return c->ending && (c->output_length == 0 || c->output_is_out);
}

bool http_is_waiting(const struct http_connection *c)
{
    return c->has_begun && !c->ending;
}

void http_time_out(struct http_connection *c)
{
    if (!c->ending) refuse(c, 408);
}

void http_drain(struct http_connection *c)
{
    if (c->has_begun)
        c->draining = true;
    else
        c->ending = true;
}
