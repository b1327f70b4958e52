#include "daemon/ctl/target.h"

#include <dirent.h>
#include <jansson.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const char runs[] = "runs";

static bool is_newer(struct timespec a, struct timespec b)
{
    return a.tv_sec != b.tv_sec ? a.tv_sec > b.tv_sec : a.tv_nsec > b.tv_nsec;
}

/* The run whose log was written last. */
static int find_newest(char path[PATH_MAX], struct error *error)
{
    struct timespec newest = {0};
    bool found = false;
    DIR *directory = opendir(runs);
    for (const struct dirent *entry; directory && (entry = readdir(directory));) {
        char log[PATH_MAX];
        struct stat facts;
        int length = snprintf(log, sizeof log, "%s/%s/log.jsonl", runs, entry->d_name);
        if (length >= (int)sizeof log || stat(log, &facts) || (found && !is_newer(facts.st_mtim, newest))) continue;
        found = true;
        newest = facts.st_mtim;
        snprintf(path, PATH_MAX, "%s/%s", runs, entry->d_name);
    }
    if (directory) closedir(directory);
    return found ? 0
                 : error_set(error, STATUS_MISSING, "no run below %s/ here: give --run DIR or --connect ADDRESS", runs);
}

static int say_not_running(const char *run, struct error *error)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.4000s/result.json", run);
    json_t *result = json_load_file(path, 0, NULL);
    const char *status = json_string_value(json_object_get(result, "status"));
    const char *reason = json_string_value(json_object_get(result, "reason"));
    const long long steps = json_integer_value(json_object_get(result, "optimizer_steps"));
    if (!status)
        error_set(error, STATUS_UNAVAILABLE, "%s: no job is running there", run);
    else
        error_set(error, STATUS_UNAVAILABLE, "%s: no job is running there; the last one is %s after %lld steps%s%s",
                  run, status, steps, reason ? ": " : "", reason ? reason : "");
    json_decref(result);
    return -STATUS_UNAVAILABLE;
}

static int read_connection(struct target *target, const char *run, struct error *error)
{
    char path[PATH_MAX];
    struct stat facts;
    if (stat(run, &facts)) return error_set(error, STATUS_MISSING, "%s: no such run directory", run);
    snprintf(path, sizeof path, "%.4000s/connection.json", run);
    json_t *connection = json_load_file(path, 0, NULL);
    const char *endpoint = json_string_value(json_object_get(connection, "endpoint"));
    const char *token = json_string_value(json_object_get(connection, "token"));
    if (endpoint) {
        snprintf(target->endpoint, sizeof target->endpoint, "%s", endpoint);
        snprintf(target->token, sizeof target->token, "%s", token ? token : "");
    }
    json_decref(connection);
    return endpoint ? 0 : say_not_running(run, error);
}

/* unix:PATH, HOST:PORT or tcp://HOST:PORT, as far as the text tells. */
static bool is_address(const char *text)
{
    if (!strncmp(text, "unix:", 5)) return text[5] != '\0';
    if (!strncmp(text, "tcp://", 6)) text += 6;
    const char *colon = strrchr(text, ':');
    return colon && colon > text && colon[1] && !colon[1 + strspn(colon + 1, "0123456789")];
}

int target_find(struct target *target, const char *connect, const char *run, struct error *error)
{
    char newest[PATH_MAX];
    if (!connect) {
        int status = run ? 0 : find_newest(newest, error);
        return status ? status : read_connection(target, run ? run : newest, error);
    }
    if (!is_address(connect))
        return error_set(error, STATUS_USAGE, "--connect %.200s: wants unix:PATH or HOST:PORT", connect);
    const char *token = getenv("GACC_TOKEN");
    snprintf(target->endpoint, sizeof target->endpoint, "%s", connect);
    snprintf(target->token, sizeof target->token, "%s", token ? token : "");
    return 0;
}
