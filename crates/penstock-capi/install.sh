#!/bin/sh
# Installs the C interface: install.sh BUILT PREFIX [package]
#
#   BUILT    where cargo left libpenstock.so, libpenstock.a and penstock-server, such as target/release
#   PREFIX   gets include/penstock.h, lib/libpenstock.*, lib/pkgconfig, lib/cmake/penstock and bin/penstock-server
#   package  for the Python package, which is a zip file: no symbolic links, no static library, and its own penstock-server
#
# What is installed may be moved as a whole: nothing in it names PREFIX.
set -eu
built=$1
prefix=$2
kind=${3:-system}
here=$(cd "$(dirname "$0")" && pwd)

version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../../Cargo.toml" | head -n 1)
interface=$(sed -n 's/^const INTERFACE: u32 = \([0-9]*\);$/\1/p' "$here/build.rs")
soname=libpenstock.so.$interface
lib=$prefix/lib

fill() { # TEMPLATE DESTINATION RPATH
    sed -e "s|@VERSION@|$version|g" -e "s|@INTERFACE@|$interface|g" -e "s|@RPATH@|$3|g" "$1" > "$2"
    chmod 644 "$2"
}

mkdir -p "$prefix/include" "$lib/pkgconfig" "$lib/cmake/penstock"
install -m 644 "$here/include/penstock.h" "$prefix/include/penstock.h"
rpath=
if [ "$kind" = package ]; then
    install -m 755 -s "$built/libpenstock.so" "$lib/$soname"
    # Where the linker looks for the library it finds its name: a symbolic link would become a second copy in the zip file.
    rm -f "$lib/libpenstock.so"
    echo "INPUT($soname)" > "$lib/libpenstock.so"
    # The loader does not search a Python package for libraries, so programs have to know where it is.
    rpath='-Wl,-rpath,${libdir} '
else
    install -m 755 -s "$built/libpenstock.so" "$lib/libpenstock.so.$version"
    ln -sf "libpenstock.so.$version" "$lib/$soname"
    ln -sf "$soname" "$lib/libpenstock.so"
    install -m 644 "$built/libpenstock.a" "$lib/libpenstock.a"
    strip --strip-debug "$lib/libpenstock.a"
    # `make install` builds it; the library is of use without it.
    if [ -x "$built/penstock-server" ]; then
        mkdir -p "$prefix/bin"
        install -m 755 -s "$built/penstock-server" "$prefix/bin/penstock-server"
    fi
fi
fill "$here/penstock.pc.in" "$lib/pkgconfig/penstock.pc" "$rpath"
fill "$here/penstock-config.cmake.in" "$lib/cmake/penstock/penstock-config.cmake" ""
fill "$here/penstock-config-version.cmake.in" "$lib/cmake/penstock/penstock-config-version.cmake" ""
