#!/bin/sh
# Makes everything behind the packages a second time, in a folder of another name, and compares: same inputs, same bits.
# With "packages" the packages are installed a second time as well (minutes, needs the mirror or the cache).
# usage: repro.sh BUILD_FOLDER PROGRAM_FOLDER INIT_PROGRAM VERSION SIGNING_KEY CUDA SOURCE_TIME [packages]
here=$(dirname "$0")
# shellcheck source=image/lib.sh
. "$here/lib.sh"

[ $# -ge 7 ] || die "usage: repro.sh BUILD_FOLDER PROGRAM_FOLDER INIT_PROGRAM VERSION SIGNING_KEY CUDA SOURCE_TIME [packages]"
build=$1 programs=$2 init=$3 version=$4 key=$5 cuda=$6 time=$7 mode=${8:-}
need_root
again=$build/image-again
rm -rf "$again"
mkdir -p "$again/image"
ln -s ../data "$again/data"
if [ "$mode" = packages ]; then
    ln "$build"/image/cache -s "$again/image/cache"
    "$here/packages.sh" "$again" tools
    "$here/packages.sh" "$again" image
else
    cp -al "$build/image/tools" "$build/image/base" "$build/image/image.stamp" "$again/image/"
fi
"$here/clean.sh" "$again"
# Another order of creation, other times: neither may show.
find "$again/image/work/clean" -type f | sort -r | head -500 | while read -r file; do
    cp -p "$file" "$file.again" && mv "$file.again" "$file"
done
"$here/compose.sh" "$again" "$programs" "$version" "$key" "$cuda"
"$here/assemble.sh" "$again" "$init" "$version" "$time"
"$here/bundle.sh" "$again" "$version" "$key" 0 "$time"

if ! diff "$build/image/work/inputs" "$again/image/work/inputs" >"$again/inputs.diff"; then
    die "other inputs than those of the first build, make image first: $(grep '^[<>]' "$again/inputs.diff" | head -3)"
fi

different=0
same=0
for file in root.erofs root.verity initrd uki.efi installer.addon.efi esp.fat stick.img manifest manifest.sig "hx170-$version.bundle"; do
    if cmp -s "$build/image/work/out/$file" "$again/image/work/out/$file"; then
        same=$((same + 1))
    else
        echo "repro: $file differs: $(cmp "$build/image/work/out/$file" "$again/image/work/out/$file" 2>&1)"
        different=$((different + 1))
    fi
done
echo "$same passed, $different failed, 0 skipped"
[ "$different" -eq 0 ] && rm -rf "$again"
