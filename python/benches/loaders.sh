#!/bin/bash
# loaders.sh DIR [PYTHON-VERSION]: fetches the loaders that loaders.py runs, into DIR. Add DIR to PYTHONPATH.
#
# They are for x86-64 Linux with glibc 2.30 or newer and CPython 3.12, or 3.11 as PYTHON-VERSION. The host also needs
# PyTorch and NumPy, which this script does not fetch. Needs Python 3 with pip. PYTHON names another.
set -euo pipefail

[ $# -eq 1 ] || [ $# -eq 2 ] || { echo "usage: $0 DIR [PYTHON-VERSION]" >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
dir=${1%/}
version=${2:-3.12}
python=${PYTHON:-python3}

platforms=()
for glibc in 2_30 2_28 2_27 2_17; do
    platforms+=(--platform "manylinux_${glibc}_x86_64")
done
"$python" -m pip install --quiet --upgrade --disable-pip-version-check --target "$dir" --no-compile \
    --no-deps --only-binary=:all: --require-hashes --requirement "$here/loaders-requirements.txt" \
    --implementation cp --python-version "$version" "${platforms[@]}"
# C++ sources and tests, which nothing loads.
rm -rf "$dir"/bin "$dir"/fastsafetensors/cpp "$dir"/runai_model_streamer/*/tests
du -sh "$dir"
