/* final/config.json: the model as the transformers library's GPT2Config wants it. */
#ifndef GACC_GPT_CONFIG_H
#define GACC_GPT_CONFIG_H

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

int gpt_config_write(const Gacc__V1__ModelSection *model, const char *path, struct error *error);

#endif
