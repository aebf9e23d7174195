# The bootable image (docs/image.md) and the first program of its initrd.
init_SRCS := init/gpt.c init/verity.c init/options.c init/disks.c init/dm.c init/steps.c
init_DEPS := base
$(call hx_module,init,image)

# Version of the image: its own number line, since boot entries and updates are ordered by it.
# Read once: every step of one build has to see the same.
IMAGE_VERSION := $(or $(IMAGE_VERSION),0.$(shell git rev-list --count HEAD 2>/dev/null || echo 0))
SIGN_KEY      ?= $(BUILD)/image/throw-away.pem
IMAGE_TREE    := $(BUILD)/image/work/tree
IMAGE_INIT    := $(O)/image/init

# Static: there is no library in the initrd.
$(IMAGE_INIT): $(O)/obj/image/init/main.o $(O)/lib/libhx-init.a $(O)/lib/libhx-base.a
	@mkdir -p $(@D)
	@echo "  LD    init"
	$(Q)$(CC) -static -o $@ $^

$(BUILD)/image/throw-away.pem:
	@mkdir -p $(@D)
	$(Q)(umask 077; openssl genpkey -quiet -algorithm ed25519 -out $@)

# Oldest version that may be updated to this one.
IMAGE_MINIMUM ?= 0

# newest: what the mirror has instead of what the lock files say.
PACKAGES ?= locked

image-tools:
	$(Q)image/packages.sh $(BUILD) tools $(PACKAGES)

image-tree: image-tools all $(SIGN_KEY)
	$(Q)image/packages.sh $(BUILD) image $(PACKAGES)
	$(Q)image/clean.sh $(BUILD)
	$(Q)image/compose.sh $(BUILD) $(O)/bin $(IMAGE_VERSION) $(SIGN_KEY) $(CUDA)

image: image-tree $(IMAGE_INIT)
	$(Q)image/assemble.sh $(BUILD) $(IMAGE_INIT) $(IMAGE_VERSION) $(SOURCE_TIME)
	$(Q)image/bundle.sh $(BUILD) $(IMAGE_VERSION) $(SIGN_KEY) $(IMAGE_MINIMUM) $(SOURCE_TIME)

# What is handed out: compressed as well, and audited.
image-release: image
	$(Q)image/release.sh $(BUILD) $(IMAGE_VERSION)
	$(Q)image/audit.py $(BUILD)

# For driver bundles that bring source; not part of the image.
image-kit: image-tools $(SIGN_KEY)
	$(Q)image/packages.sh $(BUILD) kit $(PACKAGES)
	$(Q)image/kit.sh $(BUILD) $(IMAGE_VERSION) $(SIGN_KEY) $(SOURCE_TIME)

image-audit:
	$(Q)image/audit.py $(BUILD)

# Builds again and compares; REPRO=packages installs the packages again too.
repro:
	$(Q)image/repro.sh $(BUILD) $(O)/bin $(IMAGE_INIT) $(IMAGE_VERSION) $(SIGN_KEY) $(CUDA) $(SOURCE_TIME) $(REPRO)

# Newest packages of the mirror into the lock files.
image-lock:
	$(Q)image/packages.sh $(BUILD) tools lock
	$(Q)image/packages.sh $(BUILD) image lock
	$(Q)image/packages.sh $(BUILD) kit lock

.PHONY: image image-tools image-tree image-release image-kit image-audit repro image-lock
