# Headers, library, find_package(tilewise CONFIG) and pkg-config. Nothing in what is installed names the
# install prefix, so the tree can be moved.
include(CMakePackageConfigHelpers)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/tilewise DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
        FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp")
install(TARGETS tilewise EXPORT tilewiseTargets)

set(_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/tilewise)
install(EXPORT tilewiseTargets NAMESPACE tilewise:: DESTINATION ${_package_dir})
configure_package_config_file(
  ${PROJECT_SOURCE_DIR}/cmake/tilewiseConfig.cmake.in ${PROJECT_BINARY_DIR}/tilewiseConfig.cmake
  INSTALL_DESTINATION ${_package_dir} NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
  ${PROJECT_BINARY_DIR}/tilewiseConfigVersion.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tilewiseConfig.cmake
              ${PROJECT_BINARY_DIR}/tilewiseConfigVersion.cmake
        DESTINATION ${_package_dir})

# From lib/pkgconfig back to the prefix and from there to the headers; whole paths when they are
# given as such.
set(TILEWISE_PC_LIBDIR "\${pcfiledir}/..")
if(IS_ABSOLUTE ${CMAKE_INSTALL_INCLUDEDIR} OR IS_ABSOLUTE ${CMAKE_INSTALL_LIBDIR})
  set(TILEWISE_PC_PREFIX ${CMAKE_INSTALL_PREFIX})
  set(TILEWISE_PC_INCLUDEDIR ${CMAKE_INSTALL_FULL_INCLUDEDIR})
else()
  file(RELATIVE_PATH _up /prefix/${CMAKE_INSTALL_LIBDIR}/pkgconfig /prefix)
  string(REGEX REPLACE "/$" "" _up ${_up})
  set(TILEWISE_PC_PREFIX "\${pcfiledir}/${_up}")
  set(TILEWISE_PC_INCLUDEDIR "\${prefix}/${CMAKE_INSTALL_INCLUDEDIR}")
endif()
# What a static library leaves to its user; Libs.private serves `pkg-config --static` of a shared one.
set(_private "-lstdc++ -lm -pthread")
if(OpenMP_CXX_FOUND)
  string(APPEND _private " ${OpenMP_CXX_FLAGS}")
endif()
if(_type STREQUAL "SHARED_LIBRARY")
  set(TILEWISE_PC_LIBS "-L\${libdir} -ltilewise")
  set(TILEWISE_PC_LIBS_PRIVATE ${_private})
else()
  set(TILEWISE_PC_LIBS "-L\${libdir} -ltilewise ${_private}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/tilewise.pc.in ${PROJECT_BINARY_DIR}/tilewise.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tilewise.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
