/* A profiler for NVTX (NVTX_INJECTION64_PATH): the name of every range that is opened is a line of the file NVTX_NOTES.
 */
#include <nvtx3/nvToolsExt.h>
#include <stdio.h>
#include <stdlib.h>

static FILE *notes;

static int NVTX_API note_push(const char *name)
{
    fprintf(notes, "%s\n", name);
    fflush(notes);
    return 0;
}

__attribute__((visibility("default"))) int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const char *path = getenv("NVTX_NOTES");
    NvtxFunctionTable functions;
    unsigned count;
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    if (!path || !callbacks || !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE, &functions, &count)) return 0;
    if (count <= NVTX_CBID_CORE_RangePushA || !(notes = fopen(path, "a"))) return 0;
    *functions[NVTX_CBID_CORE_RangePushA] = (NvtxFunctionPointer)note_push;
    return 1;
}
