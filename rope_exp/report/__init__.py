"""Tables, sentences, figures and the web page that report the evidence."""
