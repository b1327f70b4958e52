/* How the labels of a data set lie: how often each is there, and whether rows of the same one follow each other. */
#ifndef GACC_LABELS_H
#define GACC_LABELS_H

#include <stdbool.h>
#include <stdint.h>

enum { CLASSES_MOST = 4096 }; /* of which a histogram is made */

struct labels {
    uint64_t count[CLASSES_MOST];
    uint64_t rows, classes;
    uint64_t runs; /* of rows with the same label, one after the other */
    double last;
    bool are_classes; /* so far: whole numbers below CLASSES_MOST; whoever begins says true */
};

/* The label of the next row, in the order in which rows are read. */
void labels_take(struct labels *labels, double label);

/* Each label's rows are one run, and some label has several. */
bool labels_are_sorted(const struct labels *labels);

/* Sorted, or in less than half as many runs as a random order has of them on average, 1 + (n² − Σ n_c²)/n. */
bool labels_are_in_blocks(const struct labels *labels);

#endif
