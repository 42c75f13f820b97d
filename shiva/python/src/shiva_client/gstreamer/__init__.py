"""The GStreamer element shivainfer, which runs a model on the pictures of a video.

    export GST_PLUGIN_PATH=$(dirname FILE)  # of this file
    gst-launch-1.0 v4l2src ! videoconvert ! shivainfer model=detector ! videoconvert ! autovideosink

The element is in the folder ``python``, where GStreamer looks for elements in Python. It needs gi
and pycairo in addition to numpy; nothing else in this package does.
https://github.com/shivad/shivad/blob/main/examples/gstreamer/README.md describes it.
"""
