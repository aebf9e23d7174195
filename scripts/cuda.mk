# CUDA: found by its compiler; CUDA=0 builds without. The static runtime is linked, so a program starts on a machine
# without a driver and says so.
#
#   CUDA=dir     the toolkit (default /usr/local/cuda, or the one of nvcc on the PATH); CUDA=0: without
#   CUDA_ARCH=80 machine code for that architecture, and its PTX for newer ones

CUDA_ARCH ?= 80
CUDA_O    := $(BUILD)/cuda
CUDA_NVCC := $(firstword $(wildcard $(if $(CUDA),$(CUDA)/bin/nvcc,/usr/local/cuda/bin/nvcc)) $(if $(CUDA),,$(shell command -v nvcc 2>/dev/null)))
ifeq ($(CUDA),)
CUDA := $(if $(CUDA_NVCC),$(patsubst %/bin/nvcc,%,$(CUDA_NVCC)),0)
endif
ifneq ($(CUDA),0)
ifeq ($(CUDA_NVCC),)
$(error CUDA=$(CUDA): there is no bin/nvcc below it; CUDA=0 builds without)
endif
NVCC := $(CUDA_NVCC)
# The code of many kernels of one shape compresses to a sixth; three programs of the image carry it.
NVCC_FLAGS := -std=c++17 -O3 -lineinfo --compress-mode=size -Werror all-warnings \
	-gencode arch=compute_$(CUDA_ARCH),code=[sm_$(CUDA_ARCH),compute_$(CUDA_ARCH)] \
	-Xcompiler -Wall,-Wextra,-fPIE -Iengine/include -Iengine -Ip2p
# One word, since libraries of modules are sorted: the runtime and what its C++ parts need.
CUDA_LIBS := -Wl,--start-group,$(CUDA)/lib64/libcudart_static.a,-l:libstdc++.a,--end-group -ldl -lrt
HX_CFLAGS += -isystem $(CUDA)/include
endif

# Code for the card is the same in all variants, so it is built once.
$(CUDA_O)/%.cu.o: %.cu scripts/cuda.mk
	@mkdir -p $(@D)
	@echo "  NVCC  $<"
	$(Q)$(NVCC) $(NVCC_FLAGS) -MMD -MP -c -o $@ $<
