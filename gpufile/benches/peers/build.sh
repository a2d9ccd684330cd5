#!/bin/bash
# build.sh DIR: fetches libcufile, libcudart and kvikio from PyPI and builds the contenders in DIR.
#
# A GPU host needs only DIR/cufile_c, DIR/kvikio_cpp and DIR/lib: copy those three. The programs look for their
# libraries in the lib beside them. The build needs DIR/packages, which may be deleted afterwards.
# That host's glibc must be at least as new as this one's, because the programs are linked here.
# Needs x86-64 Linux, gcc and g++ with C++20, and Python 3 with pip. CC, CXX and PYTHON name others.
set -euo pipefail

[ $# -eq 1 ] || { echo "usage: $0 DIR" >&2; exit 2; }
[ "$(uname -s)-$(uname -m)" = Linux-x86_64 ] || { echo "$0: the packages are for x86-64 Linux" >&2; exit 1; }
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$1"
dir=$(cd "$1" && pwd)
packages=$dir/packages
cc=${CC:-gcc} cxx=${CXX:-g++} python=${PYTHON:-python3}

if ! cmp --quiet "$here/requirements.txt" "$packages/requirements.txt"; then
    rm -rf "$packages"
    mkdir "$packages"
    "$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --require-hashes \
        --dest "$packages" --requirement "$here/requirements.txt"
    for wheel in "$packages"/*.whl; do
        "$python" -m zipfile -e "$wheel" "$packages"
        rm "$wheel"
    done
    cp "$here/requirements.txt" "$packages/"
fi

cuda=$packages/nvidia/cu13
kvikio=$packages/libkvikio
logger=$packages/rapids_logger
flags=(-O2 -s -Wall -Wextra -isystem "$cuda/include")
# The old kind of run path also applies to libraries that a library loads later, as kvikio loads libcufile.
link=("$cuda/lib/libcudart_static.a" -pthread -ldl -lrt "-Wl,--disable-new-dtags,-rpath,\$ORIGIN/lib")

"$cc" -std=gnu17 "${flags[@]}" "$here/cufile_c.c" -o "$dir/cufile_c" \
    -L"$cuda/lib" -l:libcufile.so.0 "${link[@]}"
# The loader finds the symbols that libkvikio itself needs in $dir/lib.
"$cxx" -std=gnu++20 "${flags[@]}" -isystem "$kvikio/include" -isystem "$logger/include" \
    -DKVIKIO_CUFILE_FOUND -DKVIKIO_CUFILE_VERSION_API_FOUND "$here/kvikio_cpp.cc" -o "$dir/kvikio_cpp" \
    -L"$kvikio/lib64" -lkvikio -L"$logger/lib64" -lrapids_logger -Wl,--allow-shlib-undefined "${link[@]}"

"$cc" -std=gnu17 -O2 -s -Wall -Wextra -pthread "$here/sockets.c" -o "$dir/sockets"

# A bare host may lack zlib, and no other library. The libstdc++ of this host stays here: it may want a newer libc.
lib=${dir:?}/lib
rm -rf "$lib"
mkdir "$lib"
cp "$cuda"/lib/libcufile*.so.* "$kvikio"/lib64/*.so "$logger"/lib64/*.so "$packages"/libkvikio_cu13.libs/*.so* "$lib/"
zlib=$(ldd "$lib/libkvikio.so" | awk '$1 == "libz.so.1" { print $3 }')
[ -e "$zlib" ] || { echo "$0: no libz.so.1 on this host (Debian: zlib1g)" >&2; exit 1; }
cp "$zlib" "$lib/"

for program in cufile_c kvikio_cpp; do
    if ldd "$dir/$program" | grep "not found"; then
        echo "$0: $program lacks the libraries above" >&2
        exit 1
    fi
done
(cd "$dir" && du -csh cufile_c kvikio_cpp sockets lib)
