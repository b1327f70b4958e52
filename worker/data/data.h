/*
 * Data sets: where sequences lie, how they are read, in what order they come. A language-model sequence is `context`
 * inputs and their `context` next tokens, starting at i·context of its file, never crossing a file; a row of a csv
 * file, an image of an idx file is one sequence. Reading is by index; nothing here knows of steps or ranks.
 */
#ifndef GACC_DATA_H
#define GACC_DATA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "proto/error.h"
#include "proto/gacc/v1/job.pb-c.h"

/* What the model wants to be fed; a data set that cannot do so is refused when it is opened. */
struct data_shape {
    uint32_t context, vocab;  /* language models, else 0 */
    uint32_t inputs, outputs; /* of rows: x0…, y0…; with classes > 0, outputs is 1 and y0 is a class below it */
    uint32_t classes;
    bool image;    /* the inputs are an image: model.image says how many, not model.inputs */
    uint32_t size; /* tape: g0… */
    bool penalty;  /* rows have shares of a penalty, */
    bool critic;   /* y is −1, 0 or 1, and those whose y is not 0 have none */
};
void data_shape_of(const Gacc__V1__ModelSection *model, struct data_shape *shape);

/* Up to `capacity` sequences of one micro-batch. Its arrays lie in one block, so that they can be sent to a device in
 * one piece (feed_of in worker/model.h). */
struct micro_batch {
    uint32_t index;        /* of the micro-batch in its step, global */
    size_t rows, capacity; /* sequences */
    uint64_t *sequence;    /* [rows] index in the data set */
    double *weight;        /* [rows] of each target of the row that is not masked, in units of 2^exponent */
    int exponent;          /* 0 until micro_batch_scale */
    double weight_sum;     /* n_k = Σ over targets, as such */
    void *seed;            /* [rows] for the caller: what the loss of each target of the row is multiplied by, fp32 or
                              fp64 */
    uint64_t *dropout_key; /* [1] for the caller, too */
    int32_t *tokens;       /* [rows, context] inputs, NULL unless a language model */
    int32_t *targets;      /* [rows, context], or [rows] classes, else NULL; −1: masked */
    double *x;             /* [rows, inputs], or the g of a tape [rows, size]; else NULL */
    double *y;             /* [rows, outputs], else NULL */
    double *share; /* [rows] what the penalty of the row is multiplied by besides its weight, else NULL: 1, or 0 where
                      there is none, and nobody says otherwise */
    void *block;
    size_t block_bytes;
};
int micro_batch_open(struct micro_batch **out, const struct data_shape *shape, size_t capacity, struct error *error);
void micro_batch_close(struct micro_batch *batch);
void micro_batch_clear(struct micro_batch *batch);
/* Once all rows are read: puts their weights into the unit that makes n_k lie in [½, 1), so that a weight times a loss
 * or a gradient stays in double's range wherever the mean does. Powers of two: no digit changes. */
void micro_batch_scale(struct micro_batch *batch);

struct data;

/* Formats: bytes, u16, u32 (raw little-endian tokens), llmc (llm.c's header, then tokens), csv (a header line, then a
 * row of numbers a line; columns by name: weight, x0…, y0… or g0…), idx (big-endian numbers behind a header: a file of
 * images, whose numbers are x0…, and one of labels, which are y0…). A validation fraction f is cut from the end of the
 * train set, all files in their order taken as one: n tokens (rows) are cut at ⌊n·(1−f)⌋; the file in which the cut
 * falls is used on both sides of it. `spec` must outlive the data set. part: 't' the train set, 'v' the validation set
 * (NULL in *out and 0 when the job has none). Checks everything that can be checked before training: files exist and
 * are readable (66), sizes and headers fit the format, every file holds at least one sequence, every token is below
 * vocab, csv rows parse, idx files belong together (65: file, line or byte offset, found and wanted value). */
int data_open(struct data **out, const Gacc__V1__DataSection *spec, char part, const struct data_shape *shape,
              struct error *error);
uint64_t data_sequences(const struct data *data);
/* The sequence at this position of the epoch: as data.order and data.mix have it. The same for every b, K and N. */
uint64_t data_sequence_at(const struct data *data, uint64_t seed, uint64_t epoch, uint64_t position);
/* Σ of the weights of a sequence's targets. */
double data_weight(const struct data *data, uint64_t sequence);
/* From now on an epoch has so many sequences, if there are as many: the first of the first epoch, in each. */
void data_keep_first(struct data *data, uint64_t sequences);
/* Whether rows with the same label follow each other as an epoch reads them, in order SEQUENTIAL (labels.h); false
 * where there are no classes, and in any other order. */
bool data_reads_by_class(const struct data *data);
/* Appends sequence `sequence` to the batch (rows + 1). A file that shrank or fails while training: 65 or 74 naming it,
 * never a signal. */
int data_read(struct data *data, uint64_t sequence, struct micro_batch *batch, struct error *error);
/* Where a sequence lies, for messages and blame; file is borrowed. */
void data_locate(const struct data *data, uint64_t sequence, const char **file, uint64_t *offset_bytes);
void data_close(struct data *data);

/* Says what a file is, how much it holds of what, and that it is sound, as text or as JSON; the kind is told by
 * content, then by extension (.csv, .bin). Nothing is said of an unsound one: an error says why (65, 66, 74). */
int data_inspect(const char *path, bool as_json, FILE *to, struct error *error);

/* The sequence at `position` of the epoch's order: a keyed bijection of 0…count−1, computed on demand (Feistel network
 * with cycle walking). ORDER_SEQUENTIAL: position itself. */
uint64_t order_sequence(Gacc__V1__Order order, uint64_t seed, uint64_t epoch, uint64_t count, uint64_t position);
/* As above, of a mixture of files: first [files + 1], the first sequence of each, slots [files + 1], where its part of
 * an epoch of first[files] positions begins; slots[files] = first[files], no part is empty. */
uint64_t order_mixed(Gacc__V1__Order order, uint64_t seed, uint64_t epoch, size_t files, const uint64_t *first,
                     const uint64_t *slots, uint64_t position);

#endif
