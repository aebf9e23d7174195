# The image in virtual machines (docs/image-tests.md): harness, scenarios.
vmtest_SRCS := serial.c child.c vm_args.c vm.c ssh.c rawdisk.c scene.c scene_install.c scene_box.c relay.c mirror.c \
	scene_model.c scene_download.c
vmtest_SRCS += kit.c scene_update.c
vmtest_SRCS += kit_judge.c writelog.c fatview.c drivelook.c scene_cuts.c scene_stick.c scene_state.c
vmtest_SRCS += scene_drive.c scene_refuse.c lane.c
vmtest_SRCS += term.c play.c scene_wizard.c scene_driver.c scene_models.c
vmtest_DEPS := init disk base
$(call hx_module,vmtest,tests/image)
$(O)/obj/tests/image/%.o $(O)/obj/tests/unit/tests/image/%.o: CFLAGS += -Itests

# Not a program of the product: beside the unit tests.
IMAGE_TEST := $(O)/tests/image-test
$(IMAGE_TEST): $(O)/obj/tests/image/main.o $(call hx_libs,vmtest)
	@mkdir -p $(@D)
	@echo "  LD    image-test"
	$(Q)$(CC) $(HX_LDFLAGS) $(LDFLAGS) -o $@ $< -Wl,--start-group $(filter %.a,$^) -Wl,--end-group $(call hx_sysl,vmtest)

# First program of the machine of scenario `drive`. Static: there is no library in its initrd.
IMAGE_DRIVE := $(O)/tests/image-drive
$(IMAGE_DRIVE): $(O)/obj/tests/image/guest/drive.o $(O)/lib/libhx-engram.a $(O)/lib/libhx-init.a $(O)/lib/libhx-base.a
	@mkdir -p $(@D)
	@echo "  LD    image-drive"
	$(Q)$(CC) -static -o $@ $^ -luring $$(pkg-config --static --libs libcrypto 2>/dev/null || echo -lcrypto) -lm 2>$@.said || { cat $@.said; exit 1; }

# Needs a finished `make image`. SCENES="install secure": only these. JOBS=1: the long ones not two at a time.
# GO_ON=1: behind a run that was cut off, what is left of it.
image-test: $(IMAGE_TEST) $(IMAGE_DRIVE)
	$(Q)tests/image/setup.sh
	$(Q)$(IMAGE_TEST) --build $(BUILD) $(SCENES)
image-test-long: $(IMAGE_TEST) $(IMAGE_DRIVE)
	$(Q)tests/image/setup.sh
	$(Q)$(IMAGE_TEST) --build $(BUILD) --long --jobs $(or $(JOBS),2) $(if $(GO_ON),--go-on) $(SCENES)
.PHONY: image-test image-test-long
