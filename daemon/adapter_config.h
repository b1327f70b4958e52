/* What stands beside adapter_model.safetensors: what the peft library wants to know. In a folder of its own, since the
 * transformers library takes a model beside an adapter for the adapter's base. And in final/ what people want to know.
 */
#ifndef GACC_ADAPTER_CONFIG_H
#define GACC_ADAPTER_CONFIG_H

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

/* Of a model with adapters, as is the other: adapter_config.json. 74 naming the file when it cannot be written, 70 when
 * memory is out. */
int adapter_config_write(const Gacc__V1__ModelSection *model, const char *path, struct error *error);
/* README.md. 74 naming the file. */
int adapter_readme_write(const Gacc__V1__ModelSection *model, const char *path, struct error *error);

#endif
