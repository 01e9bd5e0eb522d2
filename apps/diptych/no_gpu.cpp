// Of libtorch_cuda.so on a machine without a GPU: nothing (leave_out_gpu() in libtorch.h).
