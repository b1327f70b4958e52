#include "daemon/ctl/outcome.h"

#include <errno.h>
#include <jansson.h>
#include <pwd.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char another_version[] = "its gaccd is of another version than this gaccctl " GACC_VERSION;
static const char no_room[] = "try again";

const struct outcome outcomes[] = {
    {RPC_OK, "OK", STATUS_DONE, NULL},
    {RPC_CANCELLED, "CANCELLED", STATUS_UNAVAILABLE, NULL},
    {RPC_UNKNOWN, "UNKNOWN", STATUS_INTERNAL, NULL},
    {RPC_INVALID_ARGUMENT, "INVALID_ARGUMENT", STATUS_JOB, NULL},
    {RPC_DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED", STATUS_UNAVAILABLE, no_room},
    {RPC_NOT_FOUND, "NOT_FOUND", STATUS_UNAVAILABLE, another_version},
    {RPC_ALREADY_EXISTS, "ALREADY_EXISTS", STATUS_REFUSED, NULL},
    {RPC_PERMISSION_DENIED, "PERMISSION_DENIED", STATUS_DENIED,
     "the job's own user may do it, or who has its token for control (connection.json in the run directory)"},
    {RPC_RESOURCE_EXHAUSTED, "RESOURCE_EXHAUSTED", STATUS_UNAVAILABLE, no_room},
    {RPC_FAILED_PRECONDITION, "FAILED_PRECONDITION", STATUS_REFUSED, NULL},
    {RPC_ABORTED, "ABORTED", STATUS_REFUSED, NULL},
    {RPC_OUT_OF_RANGE, "OUT_OF_RANGE", STATUS_JOB, NULL},
    {RPC_UNIMPLEMENTED, "UNIMPLEMENTED", STATUS_UNAVAILABLE, another_version},
    {RPC_INTERNAL, "INTERNAL", STATUS_INTERNAL, NULL},
    {RPC_UNAVAILABLE, "UNAVAILABLE", STATUS_UNAVAILABLE, NULL},
    {RPC_DATA_LOSS, "DATA_LOSS", STATUS_INTERNAL, NULL},
    {RPC_UNAUTHENTICATED, "UNAUTHENTICATED", STATUS_DENIED,
     "--token-file names a file with the job's token; connection.json of its run directory will do"},
};
const size_t outcome_count = sizeof outcomes / sizeof *outcomes;

int outcome_of_call(const struct target *target, enum rpc_code code, const char *text, struct error *error)
{
    const struct outcome *outcome = NULL;
    for (size_t i = 0; i < outcome_count; i++)
        if (outcomes[i].code == code) outcome = &outcomes[i];
    if (!outcome) return error_set(error, STATUS_INTERNAL, "%s: %s (grpc-status %d)", target->endpoint, text, code);
    if (outcome->status == STATUS_DONE) return 0;
    const char *said = text[0] ? text : outcome->name;
    if (!outcome->advice) return error_set(error, outcome->status, "%s", said);
    return error_set(error, outcome->status, "%s: %s", said, outcome->advice);
}

/* Whose it is, when it is not ours. */
static const char *other_owner(const char *path)
{
    struct stat facts;
    if (!path[0] || stat(path, &facts) || facts.st_uid == geteuid()) return NULL;
    const struct passwd *user = getpwuid(facts.st_uid);
    return user ? user->pw_name : "another user";
}

int outcome_unreachable(const struct target *target, int number, struct error *error)
{
    char here[256] = "";
    gethostname(here, sizeof here - 1);
    const bool is_local = !strncmp(target->endpoint, "unix:", 5);
    const char *run = target->run, *owner = other_owner(run);
    if (run[0] && is_local && target->host[0] && strcmp(here, target->host) != 0)
        return error_set(error, STATUS_UNAVAILABLE, "%s: the job listens on its own host only: call gaccctl on %s", run,
                         target->host);
    if ((number == EACCES || number == EPERM) && owner)
        return error_set(error, STATUS_DENIED, "%s: the job is %s's: call gaccctl as %s", run, owner, owner);
    error_set_errno(error, STATUS_UNAVAILABLE, number, "cannot connect to %s", target->endpoint);
    if (!run[0]) return error_prefix(error, "no job listens there, or not for this host");
    return error_prefix(
        error, "%s: its job was killed, it seems; the same gaccd command goes on from the newest checkpoint", run);
}

int outcome_no_tls(const struct target *target, enum tls_fault fault, struct error *error)
{
    const char *const pinned = "it is not that of the job's connection.json: somebody else listens there";
    const char *const advice[] = {
        [TLS_NO_FAULT] = NULL,
        [TLS_NOT_SPOKEN] = "a job without control.tls wants neither --tls nor --ca",
        [TLS_UNTRUSTED] = target->tls == TARGET_PINNED ? pinned : "--ca names a PEM file with who signed it",
        [TLS_OTHER_NAME] = "--connect wants a name or an address that the certificate has",
        [TLS_REFUSED] = "control.tls.client_authorities wants --certificate and --key, signed by one of them",
    };
    const struct error why = *error;
    return error_set(error, why.status, "%s: %s%s%s", target->endpoint, why.text, advice[fault] ? ": " : "",
                     advice[fault] ? advice[fault] : "");
}

int outcome_silent(const struct target *target, int number, struct error *error)
{
    const bool may_be_tls = target->tls == TARGET_PLAIN && strncmp(target->endpoint, "unix:", 5) != 0;
    return error_set(error, STATUS_UNAVAILABLE, "%s: %s before a word was said%s", target->endpoint,
                     number ? strerror(number) : "the connection was closed",
                     may_be_tls ? ": a job with control.tls wants --tls or --ca" : "");
}

void outcome_print_json(const struct error *error)
{
    json_t *object = json_pack("{s{si ss}}", "error", "status", (int)error->status, "message", error->text);
    if (!object) object = json_pack("{s{si ss}}", "error", "status", (int)error->status, "message", "not UTF-8");
    json_dumpf(object, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(object);
}

const char *outcome_manual(void)
{
    static const struct {
        enum status status;
        const char *meaning;
    } meanings[] = {
        {STATUS_DONE, "done; watch: the job has ended, however"},
        {STATUS_REFUSED, "the job does not do that now; health: it serves nobody"},
        {STATUS_USAGE, "command line"},
        {STATUS_DATA, "a token file holds no token, or a connection.json no address"},
        {STATUS_MISSING, "no such run directory or file"},
        {STATUS_UNAVAILABLE, "no job is there, or it cannot be reached"},
        {STATUS_INTERNAL, "a fault of the job's, as a checkpoint that failed"},
        {STATUS_IO, "writing failed"},
        {STATUS_DENIED, "not allowed"},
        {STATUS_JOB, "a value that no job file could have"},
    };
    static char text[2048];
    size_t length = 0;
    for (size_t i = 0; i < sizeof meanings / sizeof *meanings; i++) {
        length += (size_t)snprintf(text + length, sizeof text - length, "%s    %-2d  %s", i ? "\n" : "",
                                   (int)meanings[i].status, meanings[i].meaning);
        const char *before = " (";
        for (size_t k = 0; k < outcome_count; k++) {
            if (outcomes[k].status != meanings[i].status || outcomes[k].code == RPC_OK) continue;
            length += (size_t)snprintf(text + length, sizeof text - length, "%s%s", before, outcomes[k].name);
            before = ", ";
        }
        if (before[0] == ',') length += (size_t)snprintf(text + length, sizeof text - length, ")");
    }
    return text;
}
