/* HTTP/1.1 on the operators' address: what probes and Prometheus want, in one table of paths. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/coordinator/inside.h"
#include "daemon/observe/message_json.h"
#include "daemon/observe/metrics.h"

static void answer_text(struct http_answer *answer, unsigned status, const char *text)
{
    answer->status = status;
    answer->type = "text/plain; charset=utf-8";
    answer->body = strdup(text);
    answer->length = answer->body ? strlen(text) : 0;
}

static void answer_made(struct http_answer *answer, const char *type, char *body, size_t length)
{
    *answer = (struct http_answer){200, type, body, length};
    if (!body) answer_text(answer, 503, "out of memory\n");
}

static void healthz(struct coordinator *coordinator, struct http_answer *answer)
{
    const bool serving = coordinator_is_serving(coordinator);
    answer_text(answer, serving ? 200 : 503, serving ? "ok\n" : "not serving\n");
}

static void api_status(struct coordinator *coordinator, struct http_answer *answer)
{
    size_t length;
    char *text = message_json(&coordinator_status(coordinator)->base, &length);
    answer_made(answer, "application/json", text, length);
}

static void metrics(struct coordinator *coordinator, struct http_answer *answer)
{
    size_t length;
    char *text = metrics_text(coordinator_status(coordinator), coordinator_unix_seconds(), &length);
    answer_made(answer, METRICS_TYPE, text, length);
}

static const struct {
    const char *path;
    void (*answer)(struct coordinator *coordinator, struct http_answer *answer);
} paths[] = {
    {"/healthz", healthz},
    {"/api/status", api_status},
    {"/metrics", metrics},
};

bool http_service_answer(const struct http_request *request, struct http_answer *answer, enum trust trust, int fd,
                         void *context)
{
    struct coordinator *coordinator = context;
    size_t at = 0;
    while (at < sizeof paths / sizeof *paths && strcmp(paths[at].path, request->path) != 0) at++;
    const bool is_known = at < sizeof paths / sizeof *paths;
    const struct judgment judgment = guard_judge(&coordinator->guard, trust, ROLE_READ, request->authorization, NULL);
    if (judgment.code != RPC_OK) {
        audit_refused(coordinator, is_known ? paths[at].path : NULL, fd, judgment.role, judgment.logged);
        answer_text(answer, 401, "Unauthorized\n");
        return false;
    }
    if (is_known)
        paths[at].answer(coordinator, answer);
    else
        answer_text(answer, 404, "Not Found\n");
    return true;
}
