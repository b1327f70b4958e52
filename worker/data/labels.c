#include "worker/data/labels.h"

#include <math.h>
#include <stddef.h>

void labels_take(struct labels *labels, double label)
{
    labels->are_classes = labels->are_classes && label >= 0 && label < CLASSES_MOST && !(fmod(label, 1) > 0);
    if (!labels->are_classes) return;
    labels->classes += labels->count[(size_t)label]++ == 0;
    labels->runs += labels->rows == 0 || label < labels->last || label > labels->last;
    labels->rows++;
    labels->last = label;
}

bool labels_are_sorted(const struct labels *labels)
{
    return labels->are_classes && labels->classes > 1 && labels->runs == labels->classes &&
           labels->rows > labels->classes;
}

bool labels_are_in_blocks(const struct labels *labels)
{
    if (!labels->are_classes || labels->classes < 2) return false;
    const double rows = (double)labels->rows;
    double expected = 1 + rows;
    for (size_t i = 0; i < CLASSES_MOST; i++) expected -= (double)labels->count[i] * ((double)labels->count[i] / rows);
    return labels_are_sorted(labels) || 2 * (double)labels->runs < expected;
}
