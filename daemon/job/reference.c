/* The manual of the job file, from the table of keys. */
#include <string.h>

#include "daemon/job/job.h"
#include "daemon/job/keys.h"
#include "daemon/job/load.h"
#include "daemon/job/scalar.h"
#include "daemon/job/values.h"

static const char head[] = "# The job file\n"
                           "\n"
                           "Generated from the table of keys (daemon/job/keys.c).\n"
                           "\n"
                           "YAML 1.2, read strictly. Every error is one line, `FILE:LINE:COLUMN: key: why`, and exit "
                           "status 78 (66: a file that is missing). Refused are\n"
                           "unknown keys, keys that do not apply to the chosen types, values of the wrong type, "
                           "duplicates, anchors, aliases, tags and second documents.\n"
                           "Numbers are decimal, finite and without quotes: `\"3e-4\"` is a text. `${VAR}` in a path "
                           "is replaced from the environment (`$${` stands for\n"
                           "`${`); paths are relative to the working directory. A file may have 1 MiB.\n"
                           "\n"
                           "`--set key.path=value` on the command line beats the file, elements of lists by their "
                           "index: `--set optimizer.groups.0.lr=1e-4`.\n"
                           "A choice that is set drops what the file has for another, and says so: "
                           "`--set precision.compute=bf16` its `precision.loss_scale`, `--set optimizer.type=sgd`\n"
                           "its `optimizer.betas`. Setting one of `job.steps`, `job.tokens`, `job.epochs` drops "
                           "the others, and so does one of `batch.global`, `batch.tokens`.\n"
                           "\n"
                           "*While running*: keys that `gaccctl set` changes in a running job, and from when; see "
                           "control.md.\n"
                           "\n"
                           "`gaccd check JOB.yaml -n N` prints the effective job: every key with the value it has.\n";

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* "torch 65536, apex 65536, …", of the profiles that have the key. */
static void print_by_profile(const struct key *key, FILE *to)
{
    unsigned having = ~0U;
    for (const struct condition *condition = key->when; condition < key->when + 3; condition++)
        if (condition->by == BY_PROFILE) having = condition->values;
    const char *separator = "";
    for (const struct choice *profile = key_of_selector(BY_PROFILE)->choices; profile->name; profile++) {
        if (!(having & 1U << profile->value)) continue;
        Gacc__V1__LossScaleSection section = GACC__V1__LOSS_SCALE_SECTION__INIT;
        section.profile = (Gacc__V1__ScaleProfile)profile->value;
        job_loss_scale_defaults(&section);
        fprintf(to, "%s%s ", separator, profile->name);
        value_print(key, &section, to);
        separator = ", ";
    }
}

static void print_default(const struct key *key, FILE *to)
{
    if (key->by_profile)
        print_by_profile(key, to);
    else if (key->computed)
        fputs(key->computed, to);
    else if (!key->fallback)
        fputs("**needed**", to);
    else
        fputs(*key->fallback ? key->fallback : "none", to);
}

static void print_range(const struct key *key, FILE *to)
{
    const char *separator = "";
    for (const struct choice *choice = key->choices; choice && choice->name; choice++) {
        fprintf(to, "%s%s", separator, choice->name);
        separator = ", ";
    }
    bool number = key->type == KEY_U32 || key->type == KEY_U64 || key->type == KEY_NUMBER || key->type == KEY_PAIR ||
                  key->type == KEY_SECONDS || key->type == KEY_SPLIT || key->type == KEY_U32_LIST;
    if (!number) return;
    fprintf(to, "%s %s", key->above ? "above" : "from", decimal_of(key->least).text);
    if (key->most != 0) fprintf(to, " %s %s", key->below ? "to below" : "to", decimal_of(key->most).text);
    if (key->nullable) fputs(", or null", to);
}

static void print_conditions(const struct key *key, FILE *to)
{
    const char *separator = "";
    for (const struct condition *condition = key->when; condition < key->when + 3; condition++) {
        if (condition->by == BY_NOTHING) break;
        fprintf(to, "%s%s %s", separator, key_of_selector(condition->by)->path, condition_values(condition).text);
        separator = "; ";
    }
}

/* From which window on a running job has another value. */
static const char *const lives[] = {
    [LIVE_NEVER] = "", [LIVE_NEXT_WINDOW] = "next step", [LIVE_WINDOW_AFTER] = "the step after the next"};

static void print_row(const struct key *key, FILE *to)
{
    fprintf(to, "| `%s` | %s%s%s | ", key->section == IN_GROUP ? leaf_of(key->path) : key->path,
            value_type_name(key->type), key->unit ? ", " : "", key->unit ? key->unit : "");
    print_default(key, to);
    fputs(" | ", to);
    print_range(key, to);
    fputs(" | ", to);
    print_conditions(key, to);
    fprintf(to, " | %s | %s |\n", lives[key->live], key->help);
}

void job_print_reference(FILE *to)
{
    fputs(head, to);
    for (size_t i = 0; i < key_count; i++) {
        const struct key *key = &keys[i];
        bool is_section = key->type == KEY_SECTION || key->type == KEY_GROUPS;
        bool is_alone = !is_section && !strchr(key->path, '.'); /* a key that is in no section has one here */
        if (!is_section && !is_alone) {
            print_row(key, to);
            continue;
        }
        fprintf(to, "\n## %s\n\n%s", key->path, is_alone ? "A key of the job itself." : key->help);
        if (key->when[0].by != BY_NOTHING) {
            fputs(" Only with ", to);
            print_conditions(key, to);
            fputc('.', to);
        }
        fputs("\n\n| key | type | default | legal values | only with | while running | meaning "
              "|\n|---|---|---|---|---|---|---|\n",
              to);
        if (is_alone) print_row(key, to);
    }
    fputs("\n## Not in this version\n\n", to);
    for (size_t i = 0; i < absent_count; i++) {
        const struct absent *absent = &absent_keys[i];
        if (absent->path[strlen(absent->path) - 1] == '.') continue;
        fprintf(to, "- `%s%s%s`: %s\n", absent->path, absent->value ? ": " : "", absent->value ? absent->value : "",
                absent->why);
    }
}
