/*
 * The safetensors file format (github.com/huggingface/safetensors): an 8-byte little-endian header length, a JSON
 * header, the tensors' bytes without gaps. Reading checks everything before the first value is handed out; writing
 * works out the header alone, so that many ranks can put their own ranges into one file of known size.
 */
#ifndef GACC_SAFETENSORS_H
#define GACC_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/kernels.h"
#include "proto/error.h"

#define SAFETENSORS_HEADER_MAX 100000000u /* bytes, as the reference implementation limits it */

/* A name and type as the file states them; other types of the format (integers, F8 …) are read past but have no values
 * here. */
enum safetensors_type { SAFETENSORS_F64, SAFETENSORS_F32, SAFETENSORS_F16, SAFETENSORS_BF16, SAFETENSORS_OTHER };
enum safetensors_type safetensors_type_of(enum dtype type);

struct safetensors_tensor {
    const char *name;
    enum safetensors_type type;
    int dimensions;        /* 0: a scalar, one element */
    const uint64_t *shape; /* [dimensions]; the file's, or, of a header to be written, the caller's */
    uint64_t elements;
    uint64_t offset, bytes; /* where it lies after the header; filled in by open and by safetensors_header */
};

struct safetensors;

/* Refuses what is not a whole, gap-free file: 66 when it cannot be opened, 65 naming file and fault (wanted and found
 * size, overlapping or missing bytes, bad JSON, a repeated name, a shape that does not fit its bytes, metadata that are
 * not text for text). It is read with pread; a file that is cut while open is an error of safetensors_read, never a
 * signal. */
int safetensors_open(struct safetensors **out, const char *path, struct error *error);
size_t safetensors_count(const struct safetensors *file);
const struct safetensors_tensor *safetensors_at(const struct safetensors *file,
                                                size_t index); /* in the order of the data */
const struct safetensors_tensor *safetensors_find(const struct safetensors *file,
                                                  const char *name); /* NULL: none of that name */
/* Elements [first, first + count) of the tensor as double. 65 for a type without floating-point values. */
int safetensors_read(struct safetensors *file, const struct safetensors_tensor *tensor, uint64_t first, uint64_t count,
                     double *values, struct error *error);
void safetensors_close(struct safetensors *file);

/* The bytes a file with these tensors begins with: length, JSON with {"__metadata__":{"format":"pt"}}, spaces up to a
 * multiple of 8. Fills in elements, bytes and offset: the tensors lie in the given order without gaps. *header is the
 * caller's, freed with free(); the file has *header_bytes + the sum of all bytes. 70 for what no file can hold: a name
 * twice or that of the metadata, sizes beyond 2^63, a header that readers refuse. */
int safetensors_header(struct safetensors_tensor *tensors, size_t count, char **header, size_t *header_bytes,
                       struct error *error);

#endif
