#include <errno.h>
#include <inttypes.h>
#include <string.h>

#include "daemon/core/loss_scale.h"
#include "daemon/core/plan.h"
#include "daemon/job/job.h"
#include "daemon/job/keys.h"
#include "daemon/job/scalar.h"
#include "daemon/job/values.h"
#include "proto/optimizers.h"

static unsigned depth_of(const char *path)
{
    unsigned depth = 0;
    for (; *path; path++) depth += *path == '.';
    return depth;
}

static const char *leaf_of(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot ? dot + 1 : path;
}

/* Whether the key is printed: it belongs to the job, lies in its message and has a value. */
static bool has_value(const struct key *key, const Gacc__V1__JobSpec *job, Gacc__V1__ParameterGroup *group)
{
    if (key->section == IN_ASIDE || !key_applies(key, job, NULL)) return false;
    const void *base = key_base(job, NULL, group, key->section);
    return base && !value_is_absent(key, base);
}

static bool section_has_values(const char *section, const Gacc__V1__JobSpec *job)
{
    size_t length = strlen(section);
    for (size_t i = 0; i < key_count; i++) {
        bool inside = strncmp(keys[i].path, section, length) == 0 && keys[i].path[length] == '.';
        bool value = keys[i].section != IN_NONE && keys[i].section != IN_GROUP && keys[i].type != KEY_GROUPS;
        if (inside && value && has_value(&keys[i], job, NULL)) return true;
    }
    return false;
}

/* What the number stands for, behind it. */
static void print_comment(const struct key *key, const Gacc__V1__JobSpec *job, const Gacc__V1__ParameterGroup *group,
                          FILE *to)
{
    bool scaled = job->batch->lr_scaling == GACC__V1__LR_SCALING__LR_SCALING_LINEAR;
    bool is_lr = strcmp(leaf_of(key->path), "lr") == 0;
    if (is_lr && scaled)
        fprintf(to, "  # %s after lr_scaling: global / base = %" PRIu32 " / %" PRIu32,
                decimal_of(group ? group->lr : job->optimizer->lr).text, job->batch->global,
                job->batch->base_sequences);
    else if (key->unit)
        fprintf(to, "  # %s", key->unit);
}

static void print_key(const struct key *key, const Gacc__V1__JobSpec *job, Gacc__V1__ParameterGroup *group, FILE *to)
{
    fprintf(to, "%s: ", leaf_of(key->path));
    value_print(key, key_base(job, NULL, group, key->section), to);
    print_comment(key, job, group, to);
    fputc('\n', to);
}

/* The optimizer's, indented by so much. */
static void print_groups(const Gacc__V1__JobSpec *job, int indent, FILE *to)
{
    if (job->optimizer->n_groups > 0) fprintf(to, "%*sgroups:\n", indent, "");
    for (size_t i = 0; i < job->optimizer->n_groups; i++) {
        const char *dash = "- ";
        for (size_t k = 0; k < key_count; k++) {
            if (keys[k].section != IN_GROUP || !has_value(&keys[k], job, job->optimizer->groups[i])) continue;
            fprintf(to, "%*s%s", indent + 2, "", dash);
            print_key(&keys[k], job, job->optimizer->groups[i], to);
            dash = "  ";
        }
    }
}

static void print_optimizers(const Gacc__V1__JobSpec *job, FILE *to)
{
    const bool is_list = optimizers_are_list(job);
    fputs("\noptimizer:\n", to);
    for (size_t i = 0; i < optimizer_count(job); i++) {
        const Gacc__V1__JobSpec one = optimizer_alone(job, i);
        const char *indent = is_list ? "  - " : "  ";
        for (size_t k = 0; k < key_count; k++) {
            if (keys[k].section != IN_OPTIMIZER || keys[k].type == KEY_GROUPS || !has_value(&keys[k], &one, NULL))
                continue;
            fputs(indent, to);
            print_key(&keys[k], &one, NULL, to);
            indent = is_list ? "    " : "  ";
        }
        print_groups(&one, is_list ? 4 : 2, to);
    }
}

static void print_body(const Gacc__V1__JobSpec *job, FILE *to)
{
    for (size_t i = 0; i < key_count; i++) {
        const struct key *key = &keys[i];
        int indent = (int)depth_of(key->path) * 2;
        if (key->section == IN_OPTIMIZER || key->section == IN_GROUP) continue;
        if (strcmp(key->path, "optimizer") == 0)
            print_optimizers(job, to);
        else if (key->type == KEY_SECTION && section_has_values(key->path, job))
            fprintf(to, "%s%*s%s:\n", indent ? "" : "\n", indent, "", leaf_of(key->path));
        else if (key->section != IN_NONE && has_value(key, job, NULL)) {
            fprintf(to, "%s%*s", indent ? "" : "\n", indent, "");
            print_key(key, job, NULL, to);
        }
    }
}

/* K of every rank: earlier ranks take the extras, so there are two numbers at most. */
static void print_shares(uint32_t micro_batches, uint32_t ranks, FILE *to)
{
    struct plan plan = {.micro_batches = micro_batches};
    for (uint32_t rank = 0; rank < ranks;) {
        uint32_t first, share, next = rank + 1, count = 0;
        plan_share(&plan, ranks, rank, &first, &share);
        for (; next < ranks; next++) {
            plan_share(&plan, ranks, next, &first, &count);
            if (count != share) break;
        }
        fprintf(to, "#   K %" PRIu32 " micro-batches a step on ", share);
        fprintf(to, next == rank + 1 ? "rank %" PRIu32 "\n" : "ranks %" PRIu32, rank);
        if (next > rank + 1) fprintf(to, " to %" PRIu32 "\n", next - 1);
        rank = next;
    }
}

static void print_head(const Gacc__V1__JobSpec *job, uint32_t ranks, FILE *to)
{
    const Gacc__V1__BatchSection *batch = job->batch;
    uint32_t micro_batches = (batch->global - 1) / batch->micro + 1;
    bool is_gpt = job->model->type == GACC__V1__MODEL_TYPE__MODEL_GPT;
    fputs("# The effective job, as gaccd " GACC_VERSION " runs it.\n", to);
    fprintf(to, "#   B %" PRIu32 " sequences are the global batch of one optimizer step: %" PRIu64 " %s per step\n",
            batch->global, job_tokens_per_step(job), is_gpt ? "tokens" : "rows");
    fprintf(to, "#   b %" PRIu32 " sequences are a micro-batch\n", batch->micro);
    fprintf(to, "#   M %" PRIu32 " micro-batches make a step", micro_batches);
    uint32_t last = batch->global - (micro_batches - 1) * batch->micro;
    if (last < batch->micro) fprintf(to, ", the last of %" PRIu32 " sequence%s", last, last == 1 ? "" : "s");
    fputc('\n', to);
    if (ranks > 0) print_shares(micro_batches, ranks, to);
    if (batch->ramp_from > 0)
        fprintf(to, "#   ramp: M %" PRIu32 " at first, all of them after %" PRIu32 " applied steps\n",
                (batch->ramp_from - 1) / batch->micro + 1, batch->ramp_steps);
}

int job_print(const Gacc__V1__JobSpec *job, uint32_t ranks, FILE *to)
{
    print_head(job, ranks, to);
    print_body(job, to);
    return fflush(to) == 0 && !ferror(to) ? 0 : -(int)STATUS_IO;
}
