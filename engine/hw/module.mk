hw_SRCS := root.c pci.c pci_scan.c nvml.c nvml_read.c command.c klog.c variant.c driver.c platform.c wanted.c smi.c
hw_DEPS := base
hw_LIBS := -ldl
$(call hx_module,hw,engine/hw)
