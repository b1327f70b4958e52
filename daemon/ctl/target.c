#include "daemon/ctl/target.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/hex.h"
#include "proto/endpoint.h"

#define GOES_ON "command goes on"

static const char runs[] = "runs";

/* ---- the newest run directory ---- */

struct candidate {
    bool is_running; /* those go first */
    struct timespec written;
};

static bool goes_first(const struct candidate *a, const struct candidate *b)
{
    if (a->is_running != b->is_running) return a->is_running;
    if (a->written.tv_sec != b->written.tv_sec) return a->written.tv_sec > b->written.tv_sec;
    return a->written.tv_nsec > b->written.tv_nsec;
}

/* The run whose log was written last, of those with a job, or of all when there is no job. */
static int find_newest(char path[PATH_MAX], struct error *error)
{
    struct candidate newest = {0};
    bool found = false;
    DIR *directory = opendir(runs);
    for (const struct dirent *entry; directory && (entry = readdir(directory));) {
        char name[PATH_MAX];
        struct stat facts;
        if (snprintf(name, sizeof name, "%s/%s/log.jsonl", runs, entry->d_name) >= (int)sizeof name ||
            stat(name, &facts))
            continue;
        struct candidate candidate = {.written = facts.st_mtim};
        if (snprintf(name, sizeof name, "%s/%s/connection.json", runs, entry->d_name) < (int)sizeof name)
            candidate.is_running = !access(name, F_OK);
        if (found && !goes_first(&candidate, &newest)) continue;
        found = true;
        newest = candidate;
        snprintf(path, PATH_MAX, "%s/%s", runs, entry->d_name);
    }
    if (directory) closedir(directory);
    return found ? 0
                 : error_set(error, STATUS_MISSING, "no run below %s/ here: give --run DIR or --connect ADDRESS", runs);
}

/* ---- a run directory ---- */

static json_t *load(const char *run, const char *name)
{
    char path[PATH_MAX];
    return snprintf(path, sizeof path, "%s/%s", run, name) < (int)sizeof path ? json_load_file(path, 0, NULL) : NULL;
}

json_t *target_result(const char *run)
{
    json_t *result = load(run, "result.json");
    if (json_is_string(json_object_get(result, "status"))) return result;
    json_decref(result);
    return NULL;
}

const char *target_ending(const json_t *end)
{
    const char *status = json_string_value(json_object_get(end, "status"));
    return !status ? "" : !strcmp(status, "again") ? "stopped" : status;
}

void target_result_text(const json_t *result, char *text, size_t capacity)
{
    const char *reason = json_string_value(json_object_get(result, "reason"));
    snprintf(text, capacity, "%s after %lld steps%s%s", target_ending(result),
             (long long)json_integer_value(json_object_get(result, "optimizer_steps")), reason ? ": " : "",
             reason ? reason : "");
}

static int say_not_running(const char *run, struct error *error)
{
    char text[512], log[PATH_MAX];
    json_t *result = target_result(run);
    if (result) {
        const bool is_done = json_integer_value(json_object_get(result, "exit")) == STATUS_DONE;
        target_result_text(result, text, sizeof text);
        json_decref(result);
        const bool says_what_to_do = is_done || strstr(text, GOES_ON); /* as what is said behind a checkpoint does */
        return error_set(error, STATUS_UNAVAILABLE, "%s: no job is running there; the last one is %s%s", run, text,
                         says_what_to_do ? "" : "; the same gaccd command goes on from its newest checkpoint");
    }
    if (snprintf(log, sizeof log, "%s/log.jsonl", run) < (int)sizeof log && !access(log, F_OK))
        return error_set(
            error, STATUS_UNAVAILABLE,
            "%s: no job is running there; the last one was killed: the same gaccd command goes on from its "
            "newest checkpoint",
            run);
    return error_set(error, STATUS_UNAVAILABLE,
                     "%s: no job is running there, and none was: mpirun -n N gaccd JOB.yaml --output %s", run, run);
}

static int deny(const char *path, const struct stat *facts, int number, struct error *error)
{
    const struct passwd *user = getpwuid(facts->st_uid);
    if (!user) return error_set_errno(error, STATUS_DENIED, number, "%s", path);
    return error_set_errno(error, STATUS_DENIED, number, "the job is %s's, so call gaccctl as %s: %s", user->pw_name,
                           user->pw_name, path);
}

static void copy(char *to, size_t capacity, const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    snprintf(to, capacity, "%s", text ? text : "");
}

/* The token for control, or, where the file was made for somebody who may only read, that one. */
static void copy_token(struct target *target, const json_t *connection)
{
    copy(target->token, sizeof target->token, connection, "token");
    if (!target->token[0]) copy(target->token, sizeof target->token, connection, "read_token");
}

/* connection.json tells the certificate, so that nobody else's will do; one that cannot be read is nobody's. */
static void copy_tls(struct target *target, const json_t *connection)
{
    const json_t *tls = json_object_get(connection, "tls");
    const char *fingerprint = json_string_value(json_object_get(tls, "fingerprint"));
    if (!json_is_object(tls)) return;
    target->tls = TARGET_PINNED;
    if (!fingerprint || !hex_read(fingerprint, target->fingerprint, sizeof target->fingerprint))
        memset(target->fingerprint, 0, sizeof target->fingerprint);
}

/* A job that listens at every address of its host is met elsewhere by that host's name. */
static void name_host(struct target *target)
{
    char here[256] = "";
    struct endpoint endpoint;
    gethostname(here, sizeof here - 1);
    if (!endpoint_parse(&endpoint, target->endpoint) || !target->host[0] || !strcmp(here, target->host)) return;
    if (!strcmp(endpoint.host, "0.0.0.0") || !strcmp(endpoint.host, "::"))
        snprintf(target->endpoint, sizeof target->endpoint, "%s:%s", target->host, endpoint.port);
}

/* unix:PATH, HOST:PORT or tcp://HOST:PORT, as far as the text tells. */
static bool is_address(const char *text)
{
    struct endpoint endpoint;
    return endpoint_parse(&endpoint, text) || (!strncmp(text, "unix:", 5) && text[5]);
}

static int read_connection(struct target *target, const char *run, struct error *error)
{
    char path[PATH_MAX];
    struct stat facts, file;
    if (stat(run, &facts))
        return errno == EACCES ? error_set_errno(error, STATUS_DENIED, errno, "%s", run)
                               : error_set(error, STATUS_MISSING, "%s: no such run directory", run);
    if (snprintf(path, sizeof path, "%s/connection.json", run) >= (int)sizeof path)
        return error_set(error, STATUS_MISSING, "%s: no such run directory", run);
    if (access(path, R_OK) && errno == EACCES) return deny(path, &facts, EACCES, error);
    const bool is_file = !stat(path, &file) && S_ISREG(file.st_mode); /* a pipe would be waited for */
    json_t *connection = is_file ? load(run, "connection.json") : NULL;
    snprintf(target->run, sizeof target->run, "%s", run);
    copy(target->endpoint, sizeof target->endpoint, connection, "endpoint");
    copy(target->host, sizeof target->host, connection, "host");
    copy(target->job_id, sizeof target->job_id, connection, "job_id");
    copy_token(target, connection);
    copy_tls(target, connection);
    json_decref(connection);
    name_host(target);
    if (!target->endpoint[0] && !access(path, F_OK))
        return error_set(error, STATUS_DATA, "%s: is not as a job writes it: no address of a job is in it", path);
    if (!target->endpoint[0]) return say_not_running(run, error);
    if (is_address(target->endpoint)) return 0;
    return error_set(error, STATUS_DATA, "%s/connection.json: endpoint %.200s: wants unix:PATH or HOST:PORT", run,
                     target->endpoint);
}

/* ---- an address ---- */

static int take_token(struct target *target, const char *path, char *text, struct error *error)
{
    json_t *connection = json_loads(text, 0, NULL);
    if (json_is_object(connection)) {
        copy_token(target, connection);
        copy_tls(target, connection);
    } else {
        text[strcspn(text, "\r\n")] = '\0';
        for (const char *at = text; *at; at++)
            if (!isgraph((unsigned char)*at)) text[0] = '\0';
        if (strlen(text) < sizeof target->token) strcpy(target->token, text);
    }
    json_decref(connection);
    if (target->token[0]) return 0;
    return error_set(error, STATUS_DATA, "%s: holds no token: a line with it, or a job's connection.json, is wanted",
                     path);
}

static int read_token(struct target *target, const char *path, struct error *error)
{
    char text[8192];
    struct stat facts;
    FILE *file = fopen(path, "re");
    if (!file) return error_set_errno(error, STATUS_MISSING, errno, "--token-file %s", path);
    const bool is_private = !fstat(fileno(file), &facts) && (!S_ISREG(facts.st_mode) || !(facts.st_mode & 077));
    const size_t length = is_private ? fread(text, 1, sizeof text - 1, file) : 0;
    const int number = ferror(file) ? errno : 0;
    fclose(file);
    if (!is_private)
        return error_set(error, STATUS_DENIED, "--token-file %s: others may read or write it: chmod 600 %s", path,
                         path);
    if (number) return error_set_errno(error, STATUS_MISSING, number, "--token-file %s", path);
    text[length] = '\0';
    return take_token(target, path, text, error);
}

/* Which options were given, and cannot be. */
static int check_words(const struct target_words *words, struct error *error)
{
    const struct {
        bool wrong;
        const char *text;
    } rules[] = {
        {words->run && words->connect, "--run and --connect: one of them"},
        {words->token_file && !words->connect,
         "--token-file: goes with --connect; a run directory has its job's token"},
        {words->tls && !words->connect, "--tls: goes with --connect; a run directory says what its job speaks"},
        {words->ca && !words->connect, "--ca: goes with --connect; a run directory tells its job's certificate"},
        {words->plaintext && !words->connect, "--plaintext: goes with --connect"},
        {words->plaintext && (words->tls || words->ca), "--plaintext: there is none with --tls or --ca"},
        {!words->certificate != !words->key, "--certificate and --key: both of them"},
    };
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (rules[i].wrong) return error_set(error, STATUS_USAGE, "%s", rules[i].text);
    return 0;
}

static int find_address(struct target *target, const struct target_words *words, struct error *error)
{
    struct endpoint endpoint;
    if (!is_address(words->connect))
        return error_set(error, STATUS_USAGE, "--connect %.200s: wants unix:PATH or HOST:PORT", words->connect);
    snprintf(target->endpoint, sizeof target->endpoint, "%s", words->connect);
    const int status = words->token_file ? read_token(target, words->token_file, error) : 0;
    if (status) return status;
    if (words->tls || words->ca) target->tls = TARGET_AUTHORITIES;
    if (words->plaintext) target->tls = TARGET_PLAIN;
    if (!endpoint_parse(&endpoint, target->endpoint)) {
        if (words->tls || words->ca) return error_set(error, STATUS_USAGE, "--tls, --ca: a unix socket has no TLS");
        target->tls = TARGET_PLAIN;
    } else if (!target->tls && target->token[0] && !words->plaintext && !endpoint_is_loopback(&endpoint)) {
        return error_set(error, STATUS_USAGE,
                         "--connect %.200s: the token would travel where others can read it: --tls, or --ca PATH, or "
                         "--plaintext for a job that does without TLS",
                         words->connect);
    }
    return 0;
}

int target_find(struct target *target, const struct target_words *words, struct error *error)
{
    char newest[PATH_MAX];
    *target = (struct target){0};
    int status = check_words(words, error);
    if (!status && words->connect) {
        status = find_address(target, words, error);
    } else if (!status) {
        status = words->run ? 0 : find_newest(newest, error);
        if (!status) status = read_connection(target, words->run ? words->run : newest, error);
    }
    if (!status && words->certificate && !target->tls)
        status = error_set(error, STATUS_USAGE, "--certificate: %.200s has no TLS", target->endpoint);
    target->ca = words->ca;
    target->certificate = words->certificate;
    target->key = words->key;
    return status;
}
