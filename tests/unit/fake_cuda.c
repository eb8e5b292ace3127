/* libcuda.so.1 without a GPU, as far as numba-cuda-mlir uses it: notes the parameters of the last launch. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static void *current, *stream, *kernel;
static uintptr_t libraries = 0x1000;
static uint64_t words[64];
static int parameters;

void note_parameters(int count) { parameters = count; }
uint64_t word(int index) { return words[index]; }
uint64_t launched_kernel(void) { return (uint64_t)kernel; }
uint64_t launched_stream(void) { return (uint64_t)stream; }

int cuInit(unsigned flags) { return 0; }
int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
int cuDeviceGetCount(int *count) { *count = 1; return 0; }
int cuDeviceGet(int *device, int index) { *device = 0; return 0; }
int cuDeviceGetName(char *name, int length, int device) { strcpy(name, "none"); return 0; }
int cuDeviceGetUuid_v2(char *uuid, int device) { memset(uuid, 1, 16); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == 75 ? 9 : attribute == 76 ? 0 : 1024; /* compute capability 9.0 */
    return 0;
}
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)16; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
int cuCtxGetCurrent(void **context) { *context = current; return 0; }
int cuCtxSetCurrent(void *context) { current = context; return 0; }
int cuCtxPushCurrent_v2(void *context) { current = context; return 0; }
int cuCtxPopCurrent_v2(void **context) { *context = current; return 0; }
int cuCtxGetDevice(int *device) { *device = 0; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *free = *total = 1 << 30; return 0; }
int cuCtxSynchronize(void) { return 0; }
int cuLibraryGetModule(void **module, void *library) { *module = library; return 0; }
int cuPointerGetAttribute(void **value, int attribute, uint64_t pointer) { *value = (void *)16; return 0; }
int cuLibraryLoadData(void **library) { *library = (void *)++libraries; return 0; }
int cuLibraryUnload(void *library) { return 0; }
int cuLibraryGetKernel(void **found, void *library, const char *name) { *found = library; return 0; }
int cuKernelGetFunction(void **function, void *found) { *function = found; return 0; }
int cuFuncGetAttribute(int *value, int attribute, void *function) { *value = 48 << 10; return 0; }
int cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                   unsigned shared, void *on, void **values, void **extra)
{
    kernel = function;
    stream = on;
    for (int i = 0; i < parameters; i++) memcpy(&words[i], values[i], 8);
    return 0;
}

static int unsupported(void) { return 801; }

int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, void *status)
{
    char newer[200];
    void *self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    snprintf(newer, sizeof newer, "%s_v2", name);
    *found = dlsym(self, newer);
    if (!*found) *found = dlsym(self, name);
    if (!*found) *found = (void *)unsupported;
    return 0;
}
