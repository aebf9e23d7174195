# Module of each folder below installer/. Unit tests: tests/unit/installer/<folder>.
fetch_SRCS := lock.c lock_write.c trust.c plan.c config.c token.c commands.c cmd_plan.c \
	sthdr.c repo.c select.c lock_build.c cmd_lock.c disk.c probe.c cmd_status.c \
	url.c near.c response.c pace.c remote.c transfer.c answer.c metadata.c \
	progress.c download.c upstream.c run.c journal.c step.c part.c scan.c \
	store.c store_write.c store_sync.c store_check.c store_open.c state.c finish.c publish.c \
	store_repair.c recheck.c verify.c \
	store_adopt.c medium.c import.c
fetch_DEPS := text engram model backend base
fetch_LIBS := -lcurl -lsystemd
$(call hx_module,fetch,installer/fetch)
$(call hx_program,hx-fetch,installer/fetch/main.c,fetch)
# The fault tests mount it.
$(O)/tests/installer/fetch/test_store_faults: | $(O)/tests/faultfs

# Writing the system to disks: hx-install, hx-update.
disk_SRCS := io.c gpt.c layout.c fat.c verity.c system.c targets.c sums.c install.c efi_boot.c prepare.c cli.c bundle.c kernels.c update.c health.c models.c speed.c drives.c twins.c
disk_DEPS := hw base
$(call hx_module,disk,installer/disk)
$(call hx_program,hx-install,installer/disk/install_main.c,disk)
$(call hx_program,hx-update,installer/disk/update_main.c,disk)

# The wizard and its answers: hx-setup; hx answers "is it working".
setup_SRCS := box.c valid.c sshkey.c ui.c ui_plain.c ui_newt.c ui_script.c run.c steps.c step_basic.c step_network.c \
	step_driver.c step_hardware.c step_model.c step_drive.c step_performance.c step_review.c checks.c status.c status_words.c \
	render.c lock.c redact.c support.c installer.c stream.c media.c kit.c relay.c console.c
setup_DEPS := p2p hw base
setup_LIBS := -lnewt
$(call hx_module,setup,installer/setup)
$(call hx_program,hx-setup,installer/setup/main.c,setup)
$(call hx_program,hx,installer/setup/hx_main.c,setup)
$(call hx_program,hx-root,installer/setup/root_main.c,setup)
