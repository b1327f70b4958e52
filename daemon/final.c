#include "daemon/final.h"

#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>

#include "daemon/adapter_config.h"
#include "daemon/gpt_config.h"

/* DIR/final/NAME; the coordinator has seen that these paths are not too long. */
static const char *path_of(const Gacc__V1__JobSpec *job, const char *name, char path[PATH_MAX])
{
    snprintf(path, PATH_MAX, "%s/final%s", job->job->output, name);
    return path;
}

static int describe(const Gacc__V1__JobSpec *job, struct error *error)
{
    const Gacc__V1__ModelSection *model = job->model;
    char path[PATH_MAX];
    int status = 0;
    if (model->lora_rank > 0)
        status = adapter_config_write(model, path_of(job, "/adapter/adapter_config.json", path), error);
    if (!status && model->lora_rank > 0) status = adapter_readme_write(model, path_of(job, "/README.md", path), error);
    if (!status && model->type == GACC__V1__MODEL_TYPE__MODEL_GPT)
        status = gpt_config_write(model, path_of(job, "/config.json", path), error);
    return status;
}

int final_write(const Gacc__V1__JobSpec *job, bool is_first, struct session *session, struct error *error)
{
    const bool has_adapters = job->model->lora_rank > 0;
    char path[PATH_MAX];
    if (is_first) mkdir(path_of(job, "", path), 0777); /* a failure shows when files are written, on all ranks */
    if (is_first && has_adapters) mkdir(path_of(job, "/adapter", path), 0777);
    int status = session_write_model(session, path_of(job, "/model.safetensors", path), error);
    if (!status && has_adapters)
        status = session_write_adapters(session, path_of(job, "/adapter/adapter_model.safetensors", path), error);
    return status || !is_first ? status : describe(job, error);
}
