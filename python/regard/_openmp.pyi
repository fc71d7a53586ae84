region: object  # a PyCapsule; see cpp/dispatch/threads/region.hpp
