/*
 * A module for device_open_test: what it finds is what the calling thread's name says: "gpus N" or "none".
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/module.h"

static int visible(void)
{
    char name[16] = "";
    int count = 0;
    pthread_getname_np(pthread_self(), name, sizeof name);
    return sscanf(name, "gpus %d", &count) == 1 ? count : 0;
}

static bool device_count(int *count, struct kernels_failure *why)
{
    *count = visible();
    if (*count > 0) return true;
    *why = (struct kernels_failure){"no CUDA-capable device is detected", true};
    return false;
}

static bool device_info(int device, struct cuda_device_info *info, struct kernels_failure *why)
{
    (void)why;
    *info = (struct cuda_device_info){.name = "Abacus", .uuid = {(unsigned char)(device + 1)}};
    return true;
}

static struct kernels *kernels_open(const struct kernels_options *options, int device, struct kernels_failure *why)
{
    (void)options;
    snprintf(why->text, sizeof why->text, "asked for the kernels of device %d", device);
    return NULL;
}

#ifndef ABI
#define ABI CUDA_MODULE_ABI
#endif

__attribute__((visibility("default"))) const struct cuda_module gacc_cuda_module = {
    .abi = ABI, .device_count = device_count, .device_info = device_info, .kernels_open = kernels_open};
