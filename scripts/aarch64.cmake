# Toolchain for aarch64 on a Debian machine of another kind: its cross compiler, libraries unpacked below THESPIS_ROOT
# (scripts/check-aarch64 puts them there), and qemu to run what is built.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(THESPIS_ROOT $ENV{THESPIS_ROOT})
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_SYSROOT ${THESPIS_ROOT})
set(CMAKE_FIND_ROOT_PATH ${THESPIS_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
# Their libraries name others of theirs, which lie where they would on such a machine.
set(CMAKE_EXE_LINKER_FLAGS_INIT "-Wl,-rpath-link,${THESPIS_ROOT}/usr/lib/aarch64-linux-gnu:${THESPIS_ROOT}/lib/aarch64-linux-gnu")
set(CMAKE_SHARED_LINKER_FLAGS_INIT ${CMAKE_EXE_LINKER_FLAGS_INIT})
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64-static;-L;${THESPIS_ROOT})
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${THESPIS_ROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${THESPIS_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${THESPIS_ROOT}/usr/share/pkgconfig)
